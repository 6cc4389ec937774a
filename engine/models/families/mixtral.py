"""Mixtral: Mistral with experts in every layer; they go by names of their own."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import Layout, ModelConfig
from engine.models.family import ConfigSource, Family, read_decoder_config, read_experts, uniform_window

_LAYOUT = Layout(
    router="block_sparse_moe.gate",
    expert="block_sparse_moe.experts.{}",
    expert_parts=("w1", "w3", "w2"),
)
_DEFAULTS = {"rms_norm_eps": 1e-5, "num_experts_per_tok": 2, "num_local_experts": 8}


def _read_config(source: ConfigSource) -> ModelConfig:
    raw = {**_DEFAULTS, **source.raw}
    config = read_decoder_config(replace(source, raw=raw), family="mixtral", default_theta=1e6)
    return replace(
        config,
        windows=uniform_window(raw, config.num_layers, None),
        experts=read_experts(raw, "num_local_experts", "intermediate_size", True, range(config.num_layers)),
        layout=_LAYOUT,
    )


FAMILY = Family("mixtral", frozenset({"MixtralForCausalLM"}), _read_config)
