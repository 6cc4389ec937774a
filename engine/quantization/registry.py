"""Chooses how weights are stored."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.quantization import int8
from engine.quantization.int8 import Int8Weight

PLAIN = "none"
_METHODS: dict[str, Callable[[torch.Tensor], torch.Tensor | Int8Weight]] = {
    PLAIN: lambda weight: weight,
    "int8": int8.quantize,
}
NAMES = tuple(_METHODS)


def quantization(name: str) -> Callable[[torch.Tensor], torch.Tensor | Int8Weight]:
    """Maps a weight [out, in] to what `Ops.pack` takes. Raises ValueError naming the methods there are."""
    if name not in _METHODS:
        raise ValueError(f"quantization {name!r} does not exist; there are {', '.join(NAMES)}")
    return _METHODS[name]
