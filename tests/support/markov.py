"""A model whose next token follows from its last one alone, and an EAGLE-3 head that is always right.

Both work on one-hot vectors: the model's layers add nothing to its embedding, and its LM head permutes. The
head's `fc` permutes once, for its feature is of the token before; its feed-forward permutes once more at each
step, its LM head not at all.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.models.base import CausalLM
from engine.models.loader import load_model
from engine.speculation.eagle.config import Generation
from engine.speculation.eagle.head import EagleHead
from engine.speculation.eagle.loading import load_head
from tests.support.eagle_heads import HeadShape, flat_config, make_eagle3, write_head

VOCAB = 32
_SCALE = VOCAB**0.5


def permutation(seed: int = 0) -> torch.Tensor:
    """[VOCAB, VOCAB]: takes a token's one-hot vector to that of the next."""
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))
    return torch.eye(VOCAB)[order].T


def markov_model(folder: Path) -> CausalLM:
    """The model."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=VOCAB,
        intermediate_size=VOCAB,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(VOCAB))
        model.lm_head.weight.copy_(permutation())
    model.save_pretrained(folder)
    return load_model(folder, ops="torch", attention_backend="sdpa")


def knowing_head(folder: Path, model: CausalLM) -> EagleHead:
    """The head."""
    shape = HeadShape(model.config, inner=VOCAB, entering=(1, 2, 3))
    tensors = make_eagle3(shape)
    tensors = {
        name: torch.ones_like(tensor) if "norm" in name else torch.zeros_like(tensor)
        for name, tensor in tensors.items()
    }
    step = permutation()
    tensors["fc.weight"][:, :VOCAB] = step
    tensors["midlayer.mlp.gate_proj.weight"] = torch.eye(VOCAB)
    tensors["midlayer.mlp.up_proj.weight"] = torch.eye(VOCAB)
    peak = _SCALE * torch.nn.functional.silu(torch.tensor(_SCALE))
    tensors["midlayer.mlp.down_proj.weight"] = (step - torch.eye(VOCAB)) / peak
    tensors["lm_head.weight"] = torch.eye(VOCAB)
    # Of no use to it, but a slot without keys counts as one without an entry.
    tensors["midlayer.self_attn.k_proj.weight"] = torch.randn(
        VOCAB, 2 * VOCAB, generator=torch.Generator().manual_seed(0)
    )
    write_head(folder, flat_config(shape), tensors)
    return load_head(folder, Generation.THREE, model, attention_backend="sdpa")
