"""What a model's pass tells beside its logits: hidden states that draft methods read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.ops.base import Ops


@dataclass(frozen=True, slots=True)
class FeaturePoints:
    """Where the residual stream is read.

    Attributes:
        entering: layers whose un-normed input is taken, in this order; the number of layers stands for what
            leaves the last one.
        final: whether the last layer's output after the final norm, what the LM head sees, is taken too,
            after the others.
    """

    entering: tuple[int, ...] = ()
    final: bool = False

    def width(self, hidden_size: int) -> int:
        """Elements of one token's features."""
        return (len(self.entering) + self.final) * hidden_size


@dataclass(frozen=True, slots=True)
class FeatureTap:
    """Has a pass write features.

    Attributes:
        points: where they are read.
        out: [T, points.width(H)], in the model's dtype: one row for each token of the batch.
    """

    points: FeaturePoints
    out: torch.Tensor

    def entering(self, layer: int, hidden: torch.Tensor, ops: Ops) -> None:
        """Takes the input of a layer, [T, H], where it is wanted."""
        for place, wanted in enumerate(self.points.entering):
            if wanted == layer:
                self._write(place, hidden, ops)

    def final(self, normed: torch.Tensor, ops: Ops) -> None:
        """Takes what the LM head sees, [T, H]."""
        self._write(len(self.points.entering), normed, ops)

    def _write(self, place: int, hidden: torch.Tensor, ops: Ops) -> None:
        size = hidden.shape[1]
        ops.copy(hidden, self.out[:, place * size : (place + 1) * size])
