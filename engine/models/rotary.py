"""Angles of rotary position embedding, computed once a step for all layers that are rotated alike.

Formulas and their order of rounding are those of transformers.
"""

from __future__ import annotations

import math

import torch

from engine.models.config import Bands, Divided, DividedEach, Ramp, Rope
from engine.ops.buffers import Buffers

_FIRST_POSITIONS = 1024


def inverse_frequencies(rope: Rope) -> torch.Tensor:
    """Radians a token of each pair that is rotated, [dim / 2] fp32."""
    exponents: torch.Tensor = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    powers = rope.theta**exponents
    match rope.scaling:
        case None:
            return 1.0 / powers
        case Divided(factor):
            return 1.0 / powers / factor
        case DividedEach(factors):
            return 1.0 / (torch.tensor(factors, dtype=torch.float32) * powers)
        case Ramp(factor, low, high):
            # As wide as transformers makes a ramp that has no width.
            ramp = (torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low or 0.001)
            kept = 1 - ramp.clamp(0, 1)
            return 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept
        case Bands(factor, low, high, original):
            inverse = 1.0 / powers
            wavelengths = 2 * math.pi / inverse
            smooth = (original / wavelengths - low) / (high - low)
            blended = (1 - smooth) * inverse / factor + smooth * inverse
            scaled = torch.where(wavelengths > original / low, inverse / factor, blended)
            return torch.where(wavelengths < original / high, inverse, scaled)


class Rotary:
    """Cosines and sines for the layers of one model.

    On a CPU they are looked up. Computed there, even a handful of rows is divided among torch's threads,
    which sleep beside the kernels' own: to wake them takes a quarter of a millisecond, on a busy machine ten.
    """

    def __init__(self, ropes: tuple[Rope, ...], device: torch.device) -> None:
        distinct = list(dict.fromkeys(ropes))
        self._kinds = tuple(distinct.index(rope) for rope in ropes)
        self._frequencies = [(inverse_frequencies(rope).to(device), rope.magnitude) for rope in distinct]
        self._looked_up = device.type == "cpu"
        self._table: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._found = [(Buffers(), Buffers()) for _ in distinct]
        self._known = 0

    def angles(self, positions: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Cosine and sine of each layer for positions [T], each [T, rotated pairs], fp32.

        Layers that are rotated alike are given the same tensors, which the next call may overwrite.
        """
        if self._looked_up:
            self._know(int(positions.max()))
            found = [
                (_look_up(cos, positions, cosines), _look_up(sin, positions, sines))
                for (cos, sin), (cosines, sines) in zip(self._table, self._found, strict=True)
            ]
        else:
            found = self._computed(positions)
        return [found[kind] for kind in self._kinds]

    def _know(self, position: int) -> None:
        """Has the table reach this position; its length is a power of 2."""
        if position >= self._known:
            self._known = max(_FIRST_POSITIONS, 1 << position.bit_length())
            self._table = self._computed(torch.arange(self._known))

    def _computed(self, positions: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of each kind of rotation."""
        wide = positions[:, None].float()
        computed = []
        for frequencies, magnitude in self._frequencies:
            angles = wide * frequencies
            cos, sin = angles.cos(), angles.sin()
            computed.append((cos, sin) if magnitude == 1.0 else (cos * magnitude, sin * magnitude))
        return computed


def _look_up(table: torch.Tensor, positions: torch.Tensor, buffers: Buffers) -> torch.Tensor:
    found, _ = buffers.get(len(positions), table.shape[1])
    return torch.index_select(table, 0, positions, out=found)
