from __future__ import annotations

import pytest
import torch

from training.loss import lm_head_loss


def _case(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 32, generator=generator)
    weight = torch.randn(50, 32, generator=generator) * 0.3
    # Rows of less than 1: the rest is of tokens that cannot be guessed.
    teacher = torch.randn(rows + 7, 50, generator=generator).softmax(dim=1) * 0.9
    places = torch.randperm(rows + 7, generator=generator)[:rows]
    return hidden, weight, teacher, places, torch.rand(rows, generator=generator)


@pytest.mark.parametrize("rows", [1, 700])
def test_loss_and_gradients_are_those_of_plain_cross_entropy(rows: int) -> None:
    hidden, weight, teacher, places, row_weights = _case(rows)
    ours = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    loss, best, overlap = lm_head_loss(ours[0], ours[1], teacher, places, row_weights)
    (3 * loss).backward()
    plain = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    logits = plain[0] @ plain[1].t()
    wanted = teacher[places]
    expected = -((wanted * logits.log_softmax(dim=1)).sum(dim=1) * row_weights).sum()
    (3 * expected).backward()
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=1e-2)
    for own, other in zip(ours, plain, strict=True):
        assert own.grad is not None
        assert other.grad is not None
        assert (own.grad - other.grad).norm() < 0.02 * other.grad.norm()
    assert (best == logits.argmax(dim=1)).float().mean() > 0.95
    torch.testing.assert_close(
        overlap, torch.minimum(logits.softmax(dim=1), wanted).sum(dim=1), rtol=2e-2, atol=2e-2
    )


def test_rows_of_no_weight_have_no_gradient() -> None:
    hidden, weight, teacher, places, row_weights = _case(20)
    row_weights[5:] = 0
    hidden.requires_grad_()
    loss, _, _ = lm_head_loss(hidden, weight, teacher, places, row_weights)
    loss.backward()
    assert hidden.grad is not None
    assert not hidden.grad[5:].any()
    assert hidden.grad[:5].any()
