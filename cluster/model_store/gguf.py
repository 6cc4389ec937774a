"""GGUF -> Hugging Face folder, for the families that the engine computes.

Weights are dequantized to fp32, whatever their quantization: what was lost stays lost, nothing is added.
llama.cpp stores Llama's query and key rows interleaved for its own rotary form; they are put back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import dequantize

from cluster.model_store.errors import ModelStoreError
from cluster.model_store.gguf_metadata import GgufMetadata
from cluster.model_store.gguf_tokenizer import write_tokenizer
from cluster.model_store.progress import Progress

Weight = npt.NDArray[np.float32]
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_PER_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


@dataclass(frozen=True, slots=True)
class _Stored:
    """One tensor of the file and what it becomes. `interleaved_heads` is 0 where rows are in order."""

    name: str
    shape: tuple[int, ...]
    source: Any
    interleaved_heads: int

    def weight(self) -> Weight:
        values: Weight = dequantize(self.source.data, self.source.tensor_type).reshape(self.shape)
        if self.interleaved_heads:
            pairs = values.reshape(self.interleaved_heads, -1, 2, *self.shape[1:])
            values = pairs.swapaxes(1, 2).reshape(self.shape)
        return np.ascontiguousarray(values, dtype="<f4")


def convert(source: Path, folder: Path, progress: Progress) -> None:
    """Writes config, weights, tokenizer and chat template of a GGUF file into an existing folder.

    Raises:
        ModelStoreError: not a GGUF file, or one whose architecture, tensors or tokenizer are not supported.
    """
    progress(f"reading {source.name}")
    metadata = GgufMetadata(source)
    if metadata.architecture not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise ModelStoreError(
            f"{source}: architecture {metadata.architecture!r} is not supported; there are {known}"
        )
    stored = [_stored(metadata, tensor) for tensor in metadata.reader.tensors]
    config = _config(metadata, {tensor.name: tensor.shape for tensor in stored})
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(metadata))
    write_tokenizer(metadata, folder, int(config["max_position_embeddings"]))
    _write_weights(folder / "model.safetensors", stored, progress)


def _stored(metadata: GgufMetadata, tensor: Any) -> _Stored:
    base, _, suffix = tensor.name.rpartition(".")
    if base.startswith("blk."):
        _, layer, part = base.split(".", 2)
        known, prefix = _PER_LAYER.get(part), f"model.layers.{layer}."
    else:
        part, known, prefix = base, _TOP_LEVEL.get(base), ""
    if known is None or suffix not in ("weight", "bias"):
        raise ModelStoreError(f"{metadata.path}: tensor {tensor.name!r} is not supported")
    heads = 0
    if metadata.architecture == "llama" and part in ("attn_q", "attn_k"):
        key = "head_count" if part == "attn_q" else "head_count_kv"
        heads = metadata.require(f"{{arch}}.attention.{key}", int)
    # GGUF lists the fastest dimension first.
    shape = tuple(int(dim) for dim in reversed(tensor.shape))
    return _Stored(f"{prefix}{known}.{suffix}", shape, tensor, heads)


def _config(metadata: GgufMetadata, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    hidden = metadata.require("{arch}.embedding_length", int)
    heads = metadata.require("{arch}.attention.head_count", int)
    head_dim = metadata.get("{arch}.attention.key_length", int) or hidden // heads
    if metadata.get("{arch}.rope.scaling.type", str) not in (None, "none"):
        raise ModelStoreError(f"{metadata.path}: rope scaling is not supported")
    if metadata.get("{arch}.rope.dimension_count", int) not in (None, head_dim):
        raise ModelStoreError(f"{metadata.path}: rotary embedding of a part of each head is not supported")
    if "model.embed_tokens.weight" not in shapes:
        raise ModelStoreError(f"{metadata.path}: tensor 'token_embd.weight' is missing")
    theta = metadata.require_number("{arch}.rope.freq_base")
    architecture = metadata.architecture
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": shapes["model.embed_tokens.weight"][0],
        "hidden_size": hidden,
        "intermediate_size": metadata.require("{arch}.feed_forward_length", int),
        "num_hidden_layers": metadata.require("{arch}.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.require("{arch}.attention.head_count_kv", int),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": metadata.require("{arch}.context_length", int),
        "rms_norm_eps": metadata.require_number("{arch}.attention.layer_norm_rms_epsilon"),
        # Twice: transformers 4 reads the first, transformers 5 the second.
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "tie_word_embeddings": "lm_head.weight" not in shapes,
        "torch_dtype": "float32",
        "dtype": "float32",
        "use_cache": True,
    }
    if architecture == "llama":
        config |= {"attention_bias": False, "mlp_bias": False}
    return config | _special_ids(metadata)


def _special_ids(metadata: GgufMetadata) -> dict[str, int]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {name: metadata.get(f"tokenizer.ggml.{key}_token_id", int) for name, key in names.items()}
    return {name: token for name, token in found.items() if token is not None}


def _generation_config(metadata: GgufMetadata) -> dict[str, Any]:
    ids: dict[str, Any] = dict(_special_ids(metadata))
    end_of_turn = metadata.get("tokenizer.ggml.eot_token_id", int)
    if end_of_turn is not None and "eos_token_id" in ids and end_of_turn != ids["eos_token_id"]:
        ids["eos_token_id"] = [ids["eos_token_id"], end_of_turn]
    return ids


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _write_weights(path: Path, stored: list[_Stored], progress: Progress) -> None:
    """Writes fp32 safetensors tensor by tensor: no more than one is in memory."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in stored:
        start, end = end, end + 4 * int(np.prod(tensor.shape))
        header[tensor.name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for weight in _weights(stored, progress):
            file.write(weight.data)


def _weights(stored: list[_Stored], progress: Progress) -> Iterator[Weight]:
    for index, tensor in enumerate(stored):
        progress("converting weights", index / len(stored))
        try:
            yield tensor.weight()
        except (ValueError, NotImplementedError) as error:
            raise ModelStoreError(f"weight {tensor.name!r} cannot be dequantized: {error}") from error
    progress("converting weights", 1.0)
