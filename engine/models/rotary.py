"""Angles of rotary position embedding, computed once a step for all layers that are rotated alike."""

from __future__ import annotations

import torch

from engine.models.config import Rope


class Rotary:
    """Cosines and sines for the layers of one model."""

    def __init__(self, ropes: tuple[Rope, ...], device: torch.device) -> None:
        distinct = list(dict.fromkeys(ropes))
        self._kinds = tuple(distinct.index(rope) for rope in ropes)
        self._frequencies = [
            (torch.tensor(rope.inverse_frequencies, dtype=torch.float32, device=device), rope.magnitude)
            for rope in distinct
        ]

    def angles(self, positions: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Cosine and sine of each layer for positions [T], each [T, rotated pairs], fp32.

        Layers that are rotated alike are given the same tensors.
        """
        wide = positions[:, None].float()
        computed = []
        for frequencies, magnitude in self._frequencies:
            angles = wide * frequencies
            cos, sin = angles.cos(), angles.sin()
            computed.append((cos, sin) if magnitude == 1.0 else (cos * magnitude, sin * magnitude))
        return [computed[kind] for kind in self._kinds]
