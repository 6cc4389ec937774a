"""Mistral: Llama whose layers all have a sliding window, in the versions that have one."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig
from engine.models.family import ConfigSource, Family, read_decoder_config, uniform_window

_SLIDING_WINDOW = 4096


def _read_config(source: ConfigSource) -> ModelConfig:
    config = read_decoder_config(source, family="mistral")
    return replace(config, windows=uniform_window(source.raw, config.num_layers, _SLIDING_WINDOW))


FAMILY = Family("mistral", frozenset({"MistralForCausalLM"}), _read_config)
