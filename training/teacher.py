"""The target's probabilities of the tokens that a head can guess."""

from __future__ import annotations

import torch

from training.dataset import TrainingBatch
from training.loss import PART_ROWS
from training.precision import product_dtype
from training.target import TargetWeights


class Teacher:
    """The target as far as a head of one draft vocabulary sees it.

    Args:
        target: its weights.
        token_ids: [Vd] int64, the draft vocabulary.
        device: torch device.

    Attributes:
        embedding: [V, H] fp32.
        token_ids: the draft vocabulary.
    """

    def __init__(self, target: TargetWeights, token_ids: torch.Tensor, device: str) -> None:
        self.embedding = target.embedding.to(device)
        self.token_ids = token_ids.to(device)
        self._rows = target.lm_head.index_select(0, token_ids).to(device, product_dtype(device))

    @torch.no_grad()
    def probabilities(self, training: TrainingBatch) -> torch.Tensor:
        """[A, Vd], of the token after each anchor, as the device multiplies.

        It is the share of the draft vocabulary, so that rows sum to at most 1.
        """
        final, dtype = training.final.to(self._rows.dtype), self._rows.dtype
        told = torch.empty(len(final), len(self._rows), dtype=dtype, device=final.device)
        # Part by part, as the loss: then each part's logits stay in the cache.
        for start in range(0, len(final), PART_ROWS):
            part = slice(start, start + PART_ROWS)
            logits = (final[part] @ self._rows.t()).float()
            told[part] = logits.sub_(training.log_totals[part, None]).exp_()
        return told
