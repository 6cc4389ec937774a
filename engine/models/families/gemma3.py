"""Gemma 3, text only: five layers with a window to one without, each kind with its own rotary base.

Query and key heads are normed; nothing is soft-capped.
"""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig
from engine.models.errors import CheckpointError
from engine.models.families.gemma2 import DEFAULTS, read_gemma_config
from engine.models.family import FULL, SLIDING, ConfigSource, Family, mixed_windows
from engine.models.fields import RawConfig, positive_int, require_neutral
from engine.models.rope import merged_settings, read_rope

_GLOBAL_THETA, _LOCAL_THETA = 1e6, 1e4
_PATTERN = 6


def _read_config(source: ConfigSource) -> ModelConfig:
    # transformers reads this key and computes nothing of it.
    require_neutral(source.raw, {"attn_logit_softcapping": None})
    wide, local = _rope_settings(source.raw)
    plain = {key: value for key, value in source.raw.items() if key not in ("rope_theta", "rope_scaling")}
    raw = {**DEFAULTS, **plain, "rope_parameters": wide}
    config = read_gemma_config(replace(source, raw=raw), "gemma3_text")
    # Unlike elsewhere, the length in config.json is that after scaling.
    limit = positive_int(raw, "max_position_embeddings")
    local_rope, _ = read_rope(
        local,
        head_dim=config.head_dim,
        max_position_embeddings=limit,
        context_length=source.context_length,
    )
    period = positive_int(raw, "sliding_window_pattern", _PATTERN)
    types = [SLIDING if (layer + 1) % period else FULL for layer in range(config.num_layers)]
    windows, types = mixed_windows(raw, positive_int(raw, "sliding_window"), types)
    return replace(
        config,
        max_position_embeddings=limit,
        head_norms=True,
        windows=windows,
        ropes=tuple(
            local_rope if kind == SLIDING else wide_rope
            for kind, wide_rope in zip(types, config.ropes, strict=True)
        ),
    )


def _rope_settings(raw: RawConfig) -> tuple[dict[str, object], dict[str, object]]:
    """Settings of full and of sliding layers: nested by layer type (transformers 5) or apart (4)."""
    nested = raw.get("rope_parameters") or {}
    if not isinstance(nested, dict) or nested.keys() - {FULL, SLIDING}:
        raise CheckpointError(
            f"config.json: rope_parameters must have an object each for {FULL!r} and {SLIDING!r}, "
            f"not {nested!r}"
        )
    wide = {"rope_parameters": nested.get(FULL)} | {
        key: raw.get(key) for key in ("rope_theta", "rope_scaling")
    }
    local = {"rope_parameters": nested.get(SLIDING), "rope_theta": raw.get("rope_local_base_freq")}
    return merged_settings(wide, _GLOBAL_THETA), merged_settings(local, _LOCAL_THETA)


FAMILY = Family("gemma3_text", frozenset({"Gemma3ForCausalLM"}), _read_config)
