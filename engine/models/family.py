"""What a model family's file provides, and the reading of config.json that families share.

A family file defines `FAMILY`. Only what differs between families belongs there; a setting that changes
the computation and is not computed must be refused here by name, never skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.models.config import ModelConfig
from engine.models.errors import CheckpointError, UnsupportedModelError

RawConfig = Mapping[str, object]
_DEFAULT_ROPE_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class Family:
    """A model family.

    Attributes:
        model_type: config.json's `model_type`.
        architectures: the names in config.json's `architectures` that this family computes.
        read_config: maps config.json and the EOS ids to a ModelConfig. Raises UnsupportedModelError,
            CheckpointError.
    """

    model_type: str
    architectures: frozenset[str]
    read_config: Callable[[RawConfig, frozenset[int]], ModelConfig]


def read_decoder_config(
    raw: RawConfig, eos_token_ids: frozenset[int], *, family: str, qkv_bias: bool
) -> ModelConfig:
    """Reads what Llama-like decoders have in common.

    Raises:
        UnsupportedModelError: rope scaling, quantized weights, sliding windows or another activation.
        CheckpointError: a value is missing or makes no sense.
    """
    _refuse_unsupported(raw)
    hidden = positive_int(raw, "hidden_size")
    heads = positive_int(raw, "num_attention_heads")
    kv_heads = positive_int(raw, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(f"config.json: {heads} attention heads cannot share {kv_heads} key-value heads")
    if raw.get("head_dim") is None and hidden % heads:
        raise CheckpointError(f"config.json: hidden_size {hidden} is no multiple of {heads} attention heads")
    head_dim = positive_int(raw, "head_dim", hidden // heads)
    if head_dim % 2:
        raise CheckpointError(f"config.json: head_dim {head_dim} is odd, which rotary embedding cannot be")
    bos = raw.get("bos_token_id")
    return ModelConfig(
        family=family,
        vocab_size=positive_int(raw, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=positive_int(raw, "intermediate_size"),
        num_layers=positive_int(raw, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=positive_int(raw, "max_position_embeddings"),
        rms_norm_eps=_positive_float(raw, "rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(raw),
        # transformers' default for this key is the same for both families.
        tie_word_embeddings=_boolean(raw, "tie_word_embeddings", False),
        qkv_bias=qkv_bias,
        eos_token_ids=eos_token_ids,
        bos_token_id=bos if isinstance(bos, int) else None,
    )


def require_neutral(raw: RawConfig, neutral: Mapping[str, object]) -> None:
    """Raises UnsupportedModelError where a key is set to something else than None or its neutral value."""
    for key, value in neutral.items():
        found = raw.get(key)
        if found is not None and found != value:
            raise UnsupportedModelError(f"config.json: {key} = {found!r} is not supported, only {value!r}")


def positive_int(raw: RawConfig, key: str, default: int | None = None) -> int:
    """Reads a count; absent or null gives the default. Raises CheckpointError."""
    value = raw.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise CheckpointError(f"config.json: {key} must be a positive integer, not {value!r}")
    return value


def _positive_float(raw: RawConfig, key: str, default: float) -> float:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise CheckpointError(f"config.json: {key} must be a positive number, not {value!r}")
    return float(value)


def _boolean(raw: RawConfig, key: str, default: bool) -> bool:
    value = raw.get(key, default)
    if not isinstance(value, bool):
        raise CheckpointError(f"config.json: {key} must be true or false, not {value!r}")
    return value


def _refuse_unsupported(raw: RawConfig) -> None:
    require_neutral(
        raw,
        {"hidden_act": "silu", "mlp_bias": False, "rope_interleaved": False, "partial_rotary_factor": 1.0},
    )
    if raw.get("quantization_config") is not None:
        raise UnsupportedModelError("config.json: quantization_config is not supported")
    layer_types = raw.get("layer_types")
    if isinstance(layer_types, list):
        for layer_type in layer_types:
            if layer_type != "full_attention":
                raise UnsupportedModelError(f"config.json: layer type {layer_type!r} is not supported")


def _rope_theta(raw: RawConfig) -> float:
    """Reads the rotary base from `rope_parameters` (transformers 5) or `rope_theta` (4); refuses scaling."""
    theta: float | None = None
    for key in ("rope_parameters", "rope_scaling"):
        rope = raw.get(key)
        if rope is None:
            continue
        if not isinstance(rope, dict):
            raise CheckpointError(f"config.json: {key} must be an object, not {rope!r}")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise UnsupportedModelError(
                f"config.json: {key} of type {kind!r} is not supported, only 'default'"
            )
        extra = rope.keys() - {"rope_type", "type", "rope_theta"}
        if extra:
            raise UnsupportedModelError(f"config.json: {key} has {', '.join(sorted(extra))}: not supported")
        if "rope_theta" in rope:
            theta = _positive_float(rope, "rope_theta", 0.0)
    if raw.get("rope_theta") is None:
        return _DEFAULT_ROPE_THETA if theta is None else theta
    plain = _positive_float(raw, "rope_theta", _DEFAULT_ROPE_THETA)
    if theta is not None and plain != theta:
        raise CheckpointError(f"config.json: rope_theta is {plain} in one place and {theta} in another")
    return plain
