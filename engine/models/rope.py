"""Reads rotary embedding from config.json, scaled as the file says. No torch.

Frequencies follow from the model and from the length of the contexts it is asked for, never from the length
of one sequence: blocks of KV are shared by their tokens, so a key's rotation can depend on nothing else. Two
kinds of scaling name a length, `dynamic` and `longrope`; both are computed for the longest context.

Sources: linear and NTK-aware scaling as in https://arxiv.org/abs/2309.00071, which also defines YaRN;
LongRoPE is https://arxiv.org/abs/2402.13753; the piecewise form is that of the Llama 3.1 release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.models.config import Bands, Divided, DividedEach, Ramp, Rope
from engine.models.errors import CheckpointError, UnsupportedModelError
from engine.models.fields import RawConfig, boolean, positive_float, positive_int

DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class RopeSource:
    """What scaling may depend on.

    Attributes:
        settings: the rotary parameters, both spellings merged, `rope_theta` included.
        dim: dimensions of a head that are rotated.
        max_position_embeddings: as config.json has it.
        context_length: most tokens that a context is to have; 0 is the model's own limit.
    """

    settings: RawConfig
    dim: int
    max_position_embeddings: int
    context_length: int

    @property
    def theta(self) -> float:
        """The rotary base."""
        return positive_float(self.settings, "rope_theta")

    @property
    def factor(self) -> float:
        """How many times the original length the scaled contexts have."""
        return positive_float(self.settings, "factor")

    @property
    def original_length(self) -> int:
        """Tokens of the contexts that the model was trained on before scaling."""
        return positive_int(self.settings, "original_max_position_embeddings", self.max_position_embeddings)


def _plain(source: RopeSource) -> Rope:
    return Rope(source.dim, source.theta)


def _linear(source: RopeSource) -> Rope:
    return Rope(source.dim, source.theta, Divided(source.factor))


def _dynamic(source: RopeSource) -> Rope:
    length = max(source.context_length or _scaled_limit(source), source.max_position_embeddings)
    stretch = source.factor * length / source.max_position_embeddings - (source.factor - 1)
    return Rope(source.dim, source.theta * stretch ** (source.dim / (source.dim - 2)))


def _yarn(source: RopeSource) -> Rope:
    settings, original = source.settings, source.original_length
    factor = positive_float(settings, "factor", source.max_position_embeddings / original)
    truncate = boolean(settings, "truncate", True)

    def boundary(key: str, default: float) -> float:
        turns = positive_float(settings, key, default)
        return source.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(source.theta))

    low, high = boundary("beta_fast", 32.0), boundary("beta_slow", 1.0)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    ramp = Ramp(factor, max(low, 0), min(high, source.dim - 1))
    return Rope(source.dim, source.theta, ramp, _yarn_magnitude(settings, factor))


def _yarn_magnitude(settings: RawConfig, factor: float) -> float:
    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if settings.get("attention_factor") is not None:
        return positive_float(settings, "attention_factor")
    if settings.get("mscale") and settings.get("mscale_all_dim"):
        return magnitude(positive_float(settings, "mscale")) / magnitude(
            positive_float(settings, "mscale_all_dim")
        )
    return magnitude(1.0)


def _longrope(source: RopeSource) -> Rope:
    original = source.original_length
    longest = source.context_length or source.max_position_embeddings
    key = "long_factor" if longest > original else "short_factor"
    factors = source.settings.get(key)
    wanted = source.dim // 2
    if not isinstance(factors, list) or len(factors) != wanted:
        raise CheckpointError(f"config.json: {key} must be a list of {wanted} numbers, not {factors!r}")
    scales = DividedEach(tuple(positive_float({key: value}, key) for value in factors))
    factor = positive_float(source.settings, "factor", source.max_position_embeddings / original)
    magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    magnitude = positive_float(source.settings, "attention_factor", magnitude)
    return Rope(source.dim, source.theta, scales, magnitude)


def _llama3(source: RopeSource) -> Rope:
    low = positive_float(source.settings, "low_freq_factor")
    high = positive_float(source.settings, "high_freq_factor")
    if not low < high:
        raise CheckpointError(f"config.json: low_freq_factor {low} must be below high_freq_factor {high}")
    return Rope(source.dim, source.theta, Bands(source.factor, low, high, source.original_length))


@dataclass(frozen=True, slots=True)
class _Kind:
    """A `rope_type`: what reads it, and the settings that it knows."""

    read: Callable[[RopeSource], Rope]
    keys: frozenset[str] = frozenset()


_ORIGINAL = "original_max_position_embeddings"
_KINDS = {
    "default": _Kind(_plain),
    "linear": _Kind(_linear, frozenset({"factor"})),
    "dynamic": _Kind(_dynamic, frozenset({"factor"})),
    "yarn": _Kind(
        _yarn,
        frozenset({"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"})
        | {"truncate", _ORIGINAL},
    ),
    "longrope": _Kind(
        _longrope, frozenset({"factor", "attention_factor", "long_factor", "short_factor", _ORIGINAL})
    ),
    "llama3": _Kind(_llama3, frozenset({"factor", "low_freq_factor", "high_freq_factor", _ORIGINAL})),
}


def merged_settings(raw: RawConfig, default_theta: float) -> dict[str, object]:
    """The rotary settings of `rope_parameters` (transformers 5), `rope_scaling` and `rope_theta` (4).

    Raises:
        CheckpointError: the spellings contradict each other, or are no objects.
    """
    merged: dict[str, object] = {}
    sources: list[RawConfig] = [
        {key: raw.get(key) for key in ("rope_theta", "partial_rotary_factor", _ORIGINAL)}
    ]
    for key in ("rope_parameters", "rope_scaling"):
        value = raw.get(key)
        if value is not None and not isinstance(value, dict):
            raise CheckpointError(f"config.json: {key} must be an object, not {value!r}")
        sources.append({} if value is None else value)
    for source in sources:
        for key, value in source.items():
            name = "rope_type" if key == "type" else key
            if value is None:
                continue
            if merged.setdefault(name, value) != value:
                raise CheckpointError(
                    f"config.json: {name} is {merged[name]!r} in one place and {value!r} in another"
                )
    return {"rope_theta": default_theta} | merged


def read_rope(
    settings: Mapping[str, object], *, head_dim: int, max_position_embeddings: int, context_length: int
) -> tuple[Rope, int]:
    """Reads one rotary embedding.

    Args:
        settings: as `merged_settings` returns them.
        head_dim: of query and key heads.
        max_position_embeddings: config.json's.
        context_length: most tokens that a context is to have; 0 is the model's own limit.

    Returns:
        The embedding, and the model's own limit: the most tokens of a context, as vLLM derives it.

    Raises:
        UnsupportedModelError: a type or a setting that is not computed here.
        CheckpointError: a setting that is missing or makes no sense.
    """
    name = settings.get("rope_type", "default")
    kind = _KINDS.get(str(name))
    if kind is None:
        raise UnsupportedModelError(
            f"config.json: rotary embedding of type {name!r} is not supported; "
            f"supported are {', '.join(_KINDS)}"
        )
    # The original length may stand beside settings that do not use it: it is a fact about the model.
    unknown = settings.keys() - kind.keys - {"rope_type", "rope_theta", "partial_rotary_factor", _ORIGINAL}
    if unknown:
        raise UnsupportedModelError(
            f"config.json: rotary embedding of type {name!r} with {', '.join(sorted(unknown))} "
            "is not supported"
        )
    dim = int(head_dim * positive_float(settings, "partial_rotary_factor", 1.0))
    if dim % 2 or not 0 < dim <= head_dim:
        raise CheckpointError(f"config.json: {dim} rotated dimensions of head_dim {head_dim}: must be even")
    source = RopeSource(settings, dim, max_position_embeddings, context_length)
    try:
        rope = kind.read(source)
    except CheckpointError:
        raise
    except (ArithmeticError, ValueError) as error:  # a logarithm of 1 to divide by, a root of less than 0
        raise CheckpointError(f"config.json: rotary embedding of type {name!r}: {error}") from error
    return rope, _scaled_limit(source)


def _scaled_limit(source: RopeSource) -> int:
    kind = source.settings.get("rope_type")
    if kind == "yarn":
        original = source.original_length
        factor = positive_float(source.settings, "factor", source.max_position_embeddings / original)
        return int(original * factor)
    if kind in ("linear", "dynamic"):
        return int(source.max_position_embeddings * source.factor)
    return source.max_position_embeddings
