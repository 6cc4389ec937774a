"""Llama and the models that kept its architecture: no biases."""

from __future__ import annotations

from engine.models.config import ModelConfig
from engine.models.family import Family, RawConfig, read_decoder_config, require_neutral


def _read_config(raw: RawConfig, eos_token_ids: frozenset[int]) -> ModelConfig:
    # With attention_bias Llama biases the output projection too, which the decoder does not compute.
    require_neutral(raw, {"attention_bias": False})
    return read_decoder_config(raw, eos_token_ids, family="llama", qkv_bias=False)


FAMILY = Family("llama", frozenset({"LlamaForCausalLM"}), _read_config)
