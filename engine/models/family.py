"""What a model family's file provides, and the reading of config.json that families share.

A family file defines `FAMILY`. Only what differs between families belongs there; a setting that changes
the computation and is not computed must be refused here by name, never skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.models.config import Experts, ModelConfig
from engine.models.errors import CheckpointError, UnsupportedModelError
from engine.models.fields import RawConfig, boolean, positive_float, positive_int, require_neutral
from engine.models.rope import DEFAULT_THETA, merged_settings, read_rope
from engine.ops.activation import Activation

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """What a family reads a ModelConfig from.

    Attributes:
        raw: config.json.
        eos_token_ids: the ids that end an answer.
        context_length: most tokens that a context is to have; 0 is the model's own limit.
    """

    raw: RawConfig
    eos_token_ids: frozenset[int]
    context_length: int = 0


@dataclass(frozen=True, slots=True)
class Family:
    """A model family.

    Attributes:
        model_type: config.json's `model_type`.
        architectures: the names in config.json's `architectures` that this family computes.
        read_config: makes a ModelConfig of what config.json says. Raises UnsupportedModelError,
            CheckpointError.
    """

    model_type: str
    architectures: frozenset[str]
    read_config: Callable[[ConfigSource], ModelConfig]


def read_decoder_config(
    source: ConfigSource,
    *,
    family: str,
    activation_key: str = "hidden_act",
    default_theta: float = DEFAULT_THETA,
    partial_rotary: bool = False,
) -> ModelConfig:
    """Reads what decoders have in common; all layers attend to the whole context.

    Args:
        source: config.json, with what the family means where a key is left out, and what belongs to it.
        family: name for error messages.
        activation_key: the key that names the activation.
        default_theta: the rotary base where the file names none.
        partial_rotary: whether the family rotates a part of each head where the file says so.

    Raises:
        UnsupportedModelError: quantized weights, or a rotary embedding or an activation that is not computed.
        CheckpointError: a value is missing or makes no sense.
    """
    raw = source.raw
    if raw.get("quantization_config") is not None:
        raise UnsupportedModelError("config.json: quantization_config is not supported")
    hidden = positive_int(raw, "hidden_size")
    heads = positive_int(raw, "num_attention_heads")
    kv_heads = positive_int(raw, "num_key_value_heads", heads)
    layers = positive_int(raw, "num_hidden_layers")
    if heads % kv_heads:
        raise CheckpointError(f"config.json: {heads} attention heads cannot share {kv_heads} key-value heads")
    if raw.get("head_dim") is None and hidden % heads:
        raise CheckpointError(f"config.json: hidden_size {hidden} is no multiple of {heads} attention heads")
    head_dim = positive_int(raw, "head_dim", hidden // heads)
    if head_dim % 2:
        raise CheckpointError(f"config.json: head_dim {head_dim} is odd, which rotary embedding cannot be")
    require_neutral(raw, {"rope_interleaved": False})
    rope_settings = merged_settings(raw, default_theta)
    if not partial_rotary:
        require_neutral(rope_settings, {"partial_rotary_factor": 1.0})
    rope, limit = read_rope(
        rope_settings,
        head_dim=head_dim,
        max_position_embeddings=positive_int(raw, "max_position_embeddings"),
        context_length=source.context_length,
    )
    bos = raw.get("bos_token_id")
    return ModelConfig(
        family=family,
        vocab_size=positive_int(raw, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=positive_int(raw, "intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=limit,
        rms_norm_eps=positive_float(raw, "rms_norm_eps", 1e-6),
        attention_scale=head_dim**-0.5,
        windows=(0,) * layers,
        ropes=(rope,) * layers,
        tie_word_embeddings=boolean(raw, "tie_word_embeddings", False),
        eos_token_ids=source.eos_token_ids,
        bos_token_id=bos if isinstance(bos, int) else None,
        activation=_activation(raw, activation_key),
    )


def read_experts(
    raw: RawConfig, count_key: str, size_key: str, normalized: bool, layers: Iterable[int]
) -> Experts:
    """Reads a mixture of experts.

    Args:
        raw: config.json.
        count_key: names the experts of a layer.
        size_key: names the intermediate size of one.
        normalized: whether the weights of a token's experts are made to sum to 1.
        layers: those that have experts.

    Raises:
        CheckpointError: a value that makes no sense.
    """
    count, per_token = positive_int(raw, count_key), positive_int(raw, "num_experts_per_tok")
    if per_token > count:
        raise CheckpointError(f"config.json: a token cannot go to {per_token} of {count} experts")
    return Experts(count, per_token, positive_int(raw, size_key), normalized, frozenset(layers))


def uniform_window(raw: RawConfig, num_layers: int, absent: int | None) -> tuple[int, ...]:
    """Windows of a family whose layers all have `sliding_window`, or none where it is null.

    Args:
        raw: config.json.
        num_layers: of the model.
        absent: the window where the key is left out.

    Raises:
        UnsupportedModelError: `layer_types` asks for a mixture.
        CheckpointError: no positive integer.
    """
    window = 0
    if raw.get("sliding_window", absent) is not None:
        window = positive_int(raw, "sliding_window", absent)
    require_layer_types(raw, SLIDING if window else FULL)
    return (window,) * num_layers


def require_layer_types(raw: RawConfig, only: str) -> None:
    """Raises UnsupportedModelError where `layer_types` names another type than `only`."""
    layer_types = raw.get("layer_types")
    for layer_type in layer_types if isinstance(layer_types, list) else []:
        if layer_type != only:
            raise UnsupportedModelError(f"config.json: layer type {layer_type!r} is not supported")


def mixed_windows(raw: RawConfig, window: int, absent: list[str]) -> tuple[tuple[int, ...], list[str]]:
    """Windows of a family that mixes layers.

    Args:
        raw: config.json.
        window: of the sliding layers; 0 where the model has none.
        absent: the types of the layers where `layer_types` is left out.

    Returns:
        Windows and types, one for each layer.

    Raises:
        UnsupportedModelError: another type than full and sliding attention.
        CheckpointError: not one type for each layer, or sliding layers without a window.
    """
    types = raw.get("layer_types")
    if types is None:
        types = absent
    if not isinstance(types, list) or len(types) != len(absent):
        raise CheckpointError(f"config.json: layer_types must name {len(absent)} layers, not {types!r}")
    for layer_type in types:
        if layer_type not in (FULL, SLIDING):
            raise UnsupportedModelError(f"config.json: layer type {layer_type!r} is not supported")
    if SLIDING in types and not window:
        raise CheckpointError(f"config.json: layer_types has {SLIDING!r}, but there is no sliding window")
    return tuple(window if layer_type == SLIDING else 0 for layer_type in types), types


def _activation(raw: RawConfig, key: str) -> Activation:
    name = raw.get(key, "silu")
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        supported = ", ".join(map(repr, _ACTIVATIONS))
        raise UnsupportedModelError(f"config.json: {key} = {name!r} is not supported, only {supported}")
    return _ACTIVATIONS[name]
