"""Qwen2 and Qwen2.5: biased query, key and value projections; on request the upper layers have a window."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig
from engine.models.family import FULL, SLIDING, ConfigSource, Family, mixed_windows, read_decoder_config
from engine.models.fields import RawConfig, boolean, natural, positive_int

_MAX_WINDOW_LAYERS = 28
_SLIDING_WINDOW = 4096


def _read_config(source: ConfigSource) -> ModelConfig:
    config = read_decoder_config(source, family="qwen2")
    return replace(config, qkv_bias=True, windows=upper_windows(source.raw, config.num_layers))


def upper_windows(raw: RawConfig, num_layers: int) -> tuple[int, ...]:
    """The windows of Qwen2 and Qwen3: from layer `max_window_layers` on, and only with `use_sliding_window`.

    Raises CheckpointError, UnsupportedModelError.
    """
    window = first = 0
    if boolean(raw, "use_sliding_window", False) and raw.get("sliding_window", _SLIDING_WINDOW) is not None:
        window = positive_int(raw, "sliding_window", _SLIDING_WINDOW)
        first = natural(raw, "max_window_layers", _MAX_WINDOW_LAYERS)
    types = [SLIDING if window and layer >= first else FULL for layer in range(num_layers)]
    return mixed_windows(raw, window, types)[0]


FAMILY = Family("qwen2", frozenset({"Qwen2ForCausalLM"}), _read_config)
