"""Qwen3 MoE: Qwen3 with experts in all or some layers."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig
from engine.models.errors import CheckpointError
from engine.models.family import ConfigSource, Family, read_decoder_config, read_experts, uniform_window
from engine.models.fields import RawConfig, boolean, positive_int

_DEFAULTS = {"num_experts_per_tok": 8, "moe_intermediate_size": 768}


def _read_config(source: ConfigSource) -> ModelConfig:
    raw = {**_DEFAULTS, **source.raw}
    # transformers 5 writes the name that other families have.
    raw.setdefault("num_experts", raw.get("num_local_experts", 128))
    config = read_decoder_config(source, family="qwen3_moe")
    biased = boolean(raw, "attention_bias", False)
    normalized = boolean(raw, "norm_topk_prob", False)
    sparse = _sparse_layers(raw, config.num_layers)
    windowed = raw if boolean(raw, "use_sliding_window", False) else {**raw, "sliding_window": None}
    return replace(
        config,
        qkv_bias=biased,
        output_bias=biased,
        head_norms=True,
        windows=uniform_window(windowed, config.num_layers, 4096),
        experts=read_experts(raw, "num_experts", "moe_intermediate_size", normalized, sparse),
    )


def _sparse_layers(raw: RawConfig, num_layers: int) -> list[int]:
    step = positive_int(raw, "decoder_sparse_step", 1)
    dense = raw.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise CheckpointError(f"config.json: mlp_only_layers must be a list of layers, not {dense!r}")
    return [layer for layer in range(num_layers) if layer not in dense and (layer + 1) % step == 0]


FAMILY = Family("qwen3_moe", frozenset({"Qwen3MoeForCausalLM"}), _read_config)
