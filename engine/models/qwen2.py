"""Qwen2 and Qwen2.5: Llama with biased query, key and value projections."""

from __future__ import annotations

from engine.models.config import ModelConfig
from engine.models.family import Family, RawConfig, read_decoder_config, require_neutral


def _read_config(raw: RawConfig, eos_token_ids: frozenset[int]) -> ModelConfig:
    # `sliding_window` without `use_sliding_window` has no effect in this family.
    require_neutral(raw, {"use_sliding_window": False})
    return read_decoder_config(raw, eos_token_ids, family="qwen2", qkv_bias=True)


FAMILY = Family("qwen2", frozenset({"Qwen2ForCausalLM"}), _read_config)
