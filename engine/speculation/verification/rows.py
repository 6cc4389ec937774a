"""Rows of logits that belong to places."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.speculation.verification.base import Place


def rows_of(logits: torch.Tensor, places: Sequence[Place]) -> torch.Tensor:
    """The places' rows, [len(places), vocab]; no copy where they are all rows in order."""
    rows = [place.row for place in places]
    if rows == list(range(logits.shape[0])):
        return logits
    return logits.index_select(0, torch.tensor(rows, device=logits.device))
