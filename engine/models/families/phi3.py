"""Phi-3 and Phi-4-mini: projections are stored joined.

Rotary embedding may be LongRoPE, or of a part of each head.
"""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import Layout, ModelConfig
from engine.models.errors import CheckpointError, UnsupportedModelError
from engine.models.family import ConfigSource, Family, read_decoder_config, uniform_window
from engine.models.fields import RawConfig, require_neutral

_LAYOUT = Layout(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))
_OLD_NAMES = ("su", "yarn")
"""What files from before LongRoPE had its name call it; this family never had YaRN."""
_ORIGINAL, _ORIGINAL_LENGTH = "original_max_position_embeddings", 4096


def _read_config(source: ConfigSource) -> ModelConfig:
    require_neutral(source.raw, {"attention_bias": False, "mlp_bias": False})
    raw = {"rms_norm_eps": 1e-5, **source.raw, **_rope(source.raw)}
    config = read_decoder_config(replace(source, raw=raw), family="phi3", partial_rotary=True)
    return replace(config, windows=uniform_window(raw, config.num_layers, None), layout=_LAYOUT)


def _rope(raw: RawConfig) -> dict[str, object]:
    """The rotary objects of config.json under today's names."""
    changed: dict[str, object] = {}
    lengths = [raw.get(_ORIGINAL)]
    for key in ("rope_parameters", "rope_scaling"):
        settings = raw.get(key)
        if settings is None:
            continue
        if not isinstance(settings, dict):
            raise CheckpointError(f"config.json: {key} must be an object, not {settings!r}")
        kind = settings.get("rope_type", settings.get("type", "default"))
        if kind not in ("default", "longrope", *_OLD_NAMES):
            raise UnsupportedModelError(
                f"config.json: {key} of type {kind!r} is not supported by this family"
            )
        kept = {name: value for name, value in settings.items() if name not in ("type", "rope_type")}
        changed[key] = kept | {"rope_type": "longrope" if kind in _OLD_NAMES else kind}
        lengths.append(settings.get(_ORIGINAL))
    if not any(lengths):
        changed[_ORIGINAL] = _ORIGINAL_LENGTH
    return changed


FAMILY = Family("phi3", frozenset({"Phi3ForCausalLM"}), _read_config)
