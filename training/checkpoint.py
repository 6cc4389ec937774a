"""The state of a training on disk: enough to go on as if it had never stopped."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_FILE = "training.pt"


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Between two steps.

    Attributes:
        step: steps that are done.
        epoch: passes over the answers that are done.
        cursor: batches of this pass that are done.
        head: the head's weights, `feature_scale` included.
        optimizer: of `HeadOptimizer.state`.
        token_ids: [Vd], the draft vocabulary.
        seconds: of training so far, by the wall.
        tokens: guessed positions so far, of first steps.
        rope_theta: of the head, where its rotary embedding is not the target's; else 0.
    """

    step: int
    epoch: int
    cursor: int
    head: dict[str, torch.Tensor]
    optimizer: list[dict[str, Any]]
    token_ids: torch.Tensor
    seconds: float
    tokens: int
    rope_theta: float = 0.0


def save_state(folder: Path, state: TrainingState) -> None:
    """Replaces the folder's state; a crash leaves the one before."""
    beside = folder / f"{_FILE}.writing"
    torch.save({name: getattr(state, name) for name in TrainingState.__slots__}, beside)
    os.replace(beside, folder / _FILE)


def load_state(folder: Path) -> TrainingState | None:
    """The folder's state; None where there is none."""
    path = folder / _FILE
    return TrainingState(**torch.load(path, weights_only=True)) if path.exists() else None
