"""The arithmetic of Medusa heads (Cai et al., 2024): residual blocks and an LM head of each head's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.ops.base import Linear, Ops


@dataclass(frozen=True, slots=True)
class MedusaHead:
    """One head. `blocks` go from H to H; `lm_head` from H to V."""

    blocks: tuple[Linear, ...]
    lm_head: Linear


class MedusaHeads:
    """All heads of a model, the one that looks least far ahead first. Implements `DraftHead`.

    Args:
        heads: at least one.
        ops: the model's.
    """

    def __init__(self, heads: Sequence[MedusaHead], ops: Ops) -> None:
        self._heads = tuple(heads)
        self._ops = ops

    def __len__(self) -> int:
        return len(self._heads)

    def logits(self, index: int, features: torch.Tensor) -> torch.Tensor:
        """What head `index` makes of features [R, H]: fp32 [R, V], of `index` + 2 tokens behind theirs."""
        head = self._heads[index]
        for block in head.blocks:
            features = features + torch.nn.functional.silu(self._ops.linear(features, block))
        return self._ops.linear(features, head.lm_head).float()

    def to_target(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """The same: heads have the model's vocabulary."""
        return draft_ids
