"""A Llama model folder as a GGUF file for llama.cpp: weights only, since prompts are token ids."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

Array = npt.NDArray[np.float32]

_IN_LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def _name(name: str) -> str:
    base = name.removesuffix(".weight")
    if base in _OUTSIDE:
        return f"{_OUTSIDE[base]}.weight"
    _, _, layer, part = base.split(".", 3)
    return f"blk.{layer}.{_IN_LAYER[part]}.weight"


def _interleaved(weight: Array, heads: int) -> Array:
    """Rows of a query or key projection in llama.cpp's order: rotary pairs side by side within a head."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def write_gguf(model_dir: Path, file: Path, quantization: gguf.GGMLQuantizationType) -> None:
    """Writes the model; matrices in `quantization`, norms in fp32.

    Raises:
        KeyError: a weight or a setting that Llama models do not have, or lack.
    """
    config = json.loads((model_dir / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    partial = file.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config["head_dim"])
    # transformers 4 and 5 have it in different places.
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("no_vocab")
    for name, tensor in load_file(model_dir / "model.safetensors").items():
        weight: Array = tensor.to(torch.float32).numpy()
        if name.endswith("q_proj.weight"):
            weight = _interleaved(weight, heads)
        elif name.endswith("k_proj.weight"):
            weight = _interleaved(weight, kv_heads)
        if weight.ndim == 2 and quantization != gguf.GGMLQuantizationType.F32:
            quantized = gguf.quantize(weight, quantization)
            writer.add_tensor(_name(name), quantized, raw_dtype=quantization)
        else:
            writer.add_tensor(_name(name), weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(file)
