"""Small GGUF files, written by the gguf package from tiny Hugging Face models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from safetensors.numpy import load_file

from tests.support.tiny_models import CHAT_TEMPLATE, SPECIAL_TOKENS

# Hugging Face name of a part -> llama.cpp's.
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
Array = npt.NDArray[np.float32]


def tokens_of(folder: Path) -> list[str]:
    """The tiny tokenizer's tokens by id; byte 255 gives its place to "th", so that there is a merge."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    return [*tokens[:255], "th", *SPECIAL_TOKENS]


def _interleaved(weight: Array, heads: int) -> Array:
    """llama.cpp's order of Llama's query and key rows: the halves of each head alternate."""
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    folder: Path,
    path: Path,
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32,
    extra: Mapping[str, str | int | bool] | None = None,
    extra_tensors: Mapping[str, Array] | None = None,
    leave_out: str = "",
    pre_tokenizer: str = "smollm",
    tokenizer_model: str = "gpt2",
    end_of_turn: int | None = None,
) -> Path:
    """Writes a tiny Hugging Face folder as GGUF: matrices quantized as said, the rest fp32."""
    config = json.loads((folder / "config.json").read_text())
    architecture = config["model_type"]
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_tokenizer_model(tokenizer_model)
    writer.add_tokenizer_pre(pre_tokenizer)
    tokens = tokens_of(folder)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.NORMAL] * 256 + [TokenType.CONTROL] * 2 + [TokenType.USER_DEFINED])
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    if end_of_turn is not None:
        writer.add_eot_token_id(end_of_turn)
    writer.add_chat_template(CHAT_TEMPLATE)
    for key, value in (extra or {}).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[type(value)]
        add(key, value)
    for name, weight in [*load_file(folder / "model.safetensors").items(), *(extra_tensors or {}).items()]:
        if name == leave_out:
            continue
        base, _, suffix = name.rpartition(".")
        if base.startswith("model.layers."):
            _, _, layer, part = base.split(".", 3)
            target = f"blk.{layer}.{PARTS[part]}.{suffix}"
            if architecture == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
                key = "num_attention_heads" if part.endswith("q_proj") else "num_key_value_heads"
                weight = _interleaved(weight, config[key])
        else:
            target = f"{TOP[base]}.{suffix}" if base in TOP else name
        if weight.ndim == 2 and quantization is not GGMLQuantizationType.F32:
            writer.add_tensor(target, quantize(weight, quantization), raw_dtype=quantization)
        else:
            writer.add_tensor(target, np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
