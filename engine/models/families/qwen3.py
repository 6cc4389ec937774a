"""Qwen3: norms over query and key heads instead of Qwen2's biases."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig
from engine.models.families.qwen2 import upper_windows
from engine.models.family import ConfigSource, Family, read_decoder_config
from engine.models.fields import boolean


def _read_config(source: ConfigSource) -> ModelConfig:
    raw = {"head_dim": 128, **source.raw}
    config = read_decoder_config(replace(source, raw=raw), family="qwen3")
    biased = boolean(raw, "attention_bias", False)
    return replace(
        config,
        qkv_bias=biased,
        output_bias=biased,
        head_norms=True,
        windows=upper_windows(raw, config.num_layers),
    )


FAMILY = Family("qwen3", frozenset({"Qwen3ForCausalLM"}), _read_config)
