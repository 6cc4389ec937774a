"""Tiny random models in the Hugging Face folder form, made by transformers itself."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from tests.support.tiny_tokenizer import CHAT_TEMPLATE, IM_END, SPECIAL_TOKENS, VOCAB_SIZE, write_tokenizer

__all__ = [
    "CHAT_TEMPLATE",
    "IM_END",
    "SPECIAL_TOKENS",
    "VOCAB_SIZE",
    "save_tiny",
    "tiny_llama",
    "tiny_qwen2",
    "tiny_shapes",
]


def save_tiny(model: PreTrainedModel, folder: Path) -> Path:
    """Writes a model and the tiny tokenizer. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def tiny_shapes(max_model_len: int) -> dict[str, int | float]:
    """The settings that all tiny models start from."""
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": max_model_len,
        "bos_token_id": 256,
        "eos_token_id": IM_END,
        "pad_token_id": 258,
        # Larger than the usual 0.02: random logits then lie far enough apart for greedy comparisons.
        "initializer_range": 0.2,
    }


def tiny_llama(
    folder: Path, seed: int = 0, max_model_len: int = 4096, tie: bool = True, layers: int = 3
) -> Path:
    """Llama with hidden size 64, 4/2 heads, 259 tokens. Returns the folder.

    More `layers` make it slow: tests of faults need time in which to strike.
    """
    torch.manual_seed(seed)
    shapes = {**tiny_shapes(max_model_len), "num_hidden_layers": layers}
    config = LlamaConfig(**shapes, tie_word_embeddings=tie)
    return save_tiny(LlamaForCausalLM(config).to(torch.float32), folder)


def tiny_qwen2(folder: Path, seed: int = 0, max_model_len: int = 4096) -> Path:
    """Qwen2 (biased q, k, v) of the same shapes. Returns the folder."""
    torch.manual_seed(seed)
    config = Qwen2Config(**tiny_shapes(max_model_len), tie_word_embeddings=False)
    model = Qwen2ForCausalLM(config).to(torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("proj.bias"):
                parameter.normal_(std=0.5)
    return save_tiny(model, folder)
