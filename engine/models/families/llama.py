"""Llama 2 and 3, and the models that kept their architecture."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig
from engine.models.family import FULL, ConfigSource, Family, read_decoder_config, require_layer_types
from engine.models.fields import boolean


def _read_config(source: ConfigSource) -> ModelConfig:
    require_layer_types(source.raw, FULL)
    biased = boolean(source.raw, "attention_bias", False)
    return replace(
        read_decoder_config(source, family="llama"),
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=boolean(source.raw, "mlp_bias", False),
    )


FAMILY = Family("llama", frozenset({"LlamaForCausalLM"}), _read_config)
