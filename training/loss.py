"""Soft cross-entropy through the LM head, without ever holding the logits of a whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from training.precision import product_dtype

PART_ROWS = 256
"""Rows of logits that are held at a time."""


class _LmHeadLoss(torch.autograd.Function):
    """Gradients are computed with the loss, part by part: then each part's logits stay in the cache."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        teacher: torch.Tensor,
        rows: torch.Tensor,
        row_weights: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        dtype = product_dtype(hidden.device.type)
        low, matrix = hidden.to(dtype), weight.to(dtype)
        # Where acceptance is measured only the weight may want one, and nothing is needed.
        hidden_grad = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        weight_grad = torch.zeros_like(matrix) if all(ctx.needs_input_grad[:2]) else None
        losses, best, overlaps = [], [], []
        for start in range(0, len(hidden), PART_ROWS):
            part = slice(start, start + PART_ROWS)
            logits = (low[part] @ matrix.t()).float()
            wanted = teacher.index_select(0, rows[part]).float()
            top, guessed = logits.max(dim=1, keepdim=True)
            best.append(guessed[:, 0])
            mass = wanted.sum(dim=1, keepdim=True)
            hoped = torch.linalg.vecdot(wanted, logits)
            guess = logits.sub_(top).exp_()
            size = guess.sum(dim=1, keepdim=True)
            losses.append(((size.log() + top) * mass)[:, 0] - hoped)
            guess.div_(size)
            overlaps.append(torch.minimum(guess, wanted).sum(dim=1))
            if hidden_grad is None:
                continue
            slope = guess.mul_(mass).sub_(wanted).mul_(row_weights[part, None]).to(dtype)
            hidden_grad[part] = (slope @ matrix).to(hidden.dtype)
            if weight_grad is not None:
                weight_grad.addmm_(slope.t(), low[part])
        ctx.gradients = (hidden_grad, None if weight_grad is None else weight_grad.to(weight.dtype))
        loss = (torch.cat(losses) * row_weights).sum()
        guesses, overlap = torch.cat(best), torch.cat(overlaps)
        ctx.mark_non_differentiable(guesses, overlap)
        return loss, guesses, overlap

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        hidden_grad, weight_grad = ctx.gradients
        scaled = None if weight_grad is None else weight_grad * grads[0]
        return hidden_grad * grads[0], scaled, None, None, None


def lm_head_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    teacher: torch.Tensor,
    rows: torch.Tensor,
    row_weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weighted sum of cross-entropies of softmax(hidden @ weight^T) against the teacher's probabilities.

    The products are computed in the device's fast type (`product_dtype`), everything else in fp32.

    Args:
        hidden: [N, H], what the LM head sees.
        weight: [Vd, H].
        teacher: [M, Vd], probabilities; where a row's sum is less than 1, the rest is of tokens that cannot
            be guessed, and the row counts for that much less.
        rows: [N], which of them is each row's.
        row_weights: [N]; 0 leaves a row out.

    Returns:
        The loss, a scalar; the likeliest guess of each row, [N]; and sum(min(guess, teacher)) of each row,
        [N], which is the chance that a drawn guess is accepted.
    """
    apply: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = _LmHeadLoss.apply
    loss, best, overlap = apply(hidden, weight, teacher, rows, row_weights)
    return loss, best, overlap
