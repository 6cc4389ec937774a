"""Reading single values of config.json, and saying what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping

from engine.models.errors import CheckpointError, UnsupportedModelError

RawConfig = Mapping[str, object]


def positive_int(raw: RawConfig, key: str, default: int | None = None) -> int:
    """Reads a count; absent or null gives the default. Raises CheckpointError."""
    value = raw.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise CheckpointError(f"config.json: {key} must be a positive integer, not {value!r}")
    return value


def natural(raw: RawConfig, key: str, default: int) -> int:
    """Reads a count that may be 0; absent or null gives the default. Raises CheckpointError."""
    value = raw.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CheckpointError(f"config.json: {key} must be an integer, 0 or more, not {value!r}")
    return value


def positive_float(raw: RawConfig, key: str, default: float | None = None) -> float:
    """Reads a finite positive number; absent or null gives the default. Raises CheckpointError."""
    value = raw.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise CheckpointError(f"config.json: {key} must be a positive number, not {value!r}")
    return float(value)


def boolean(raw: RawConfig, key: str, default: bool) -> bool:
    """Reads true or false; absent or null gives the default. Raises CheckpointError."""
    value = raw.get(key)
    if value is None:
        value = default
    if not isinstance(value, bool):
        raise CheckpointError(f"config.json: {key} must be true or false, not {value!r}")
    return value


def require_neutral(raw: RawConfig, neutral: Mapping[str, object]) -> None:
    """Raises UnsupportedModelError where a key is set to something else than None or its neutral value."""
    for key, value in neutral.items():
        found = raw.get(key)
        if found is not None and found != value:
            raise UnsupportedModelError(f"config.json: {key} = {found!r} is not supported, only {value!r}")
