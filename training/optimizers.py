"""Two optimisers as one: Muon for the matrices of the layer, AdamW for everything else."""

from __future__ import annotations

from typing import Any

import torch

from training.config import TrainingConfig
from training.head import Eagle3Head
from training.muon import Muon


class HeadOptimizer:
    """Updates a head.

    Muon's steps are orthogonal matrices, scaled to the size of AdamW's.

    Args:
        head: whose weights are updated.
        config: learning rates and clipping.
    """

    def __init__(self, head: Eagle3Head, config: TrainingConfig) -> None:
        self._clip = config.clip
        self._parameters = [parameter for parameter in head.parameters() if parameter.requires_grad]
        matrices = [*head.fc.parameters(), *(p for p in head.midlayer.parameters() if p.dim() == 2)]
        apart = {id(parameter) for parameter in matrices}
        others = [parameter for parameter in self._parameters if id(parameter) not in apart]
        self._parts: tuple[tuple[torch.optim.Optimizer, float], ...] = (
            (Muon(matrices, config.matrix_rate, config.weight_decay), config.matrix_rate),
            (torch.optim.AdamW(others, lr=config.rate, betas=(0.9, 0.95), weight_decay=0.0), config.rate),
        )

    def step(self, factor: float) -> None:
        """Applies the gradients, clipped, and clears them; `factor` is on the learning rates."""
        torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)
        for optimizer, rate in self._parts:
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """What a checkpoint keeps."""
        return [optimizer.state_dict() for optimizer, _ in self._parts]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Goes on from a checkpoint's state."""
        for (optimizer, _), saved in zip(self._parts, state, strict=True):
            optimizer.load_state_dict(saved)
