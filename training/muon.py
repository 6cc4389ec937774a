"""Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/), multiplied as suits the device.

PyTorch's own multiplies in bf16 wherever it runs, which takes four times as long on CPUs that emulate it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from training.precision import product_dtype

_MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.775, 2.0315)
_ITERATIONS = 5
_SIZE = 0.2
"""Root mean square of an update per learning rate, that of AdamW's (Liu et al., 2025)."""


class Muon(torch.optim.Optimizer):
    """Updates matrices by nearly orthogonal steps, with Nesterov's momentum.

    Args:
        matrices: parameters of two dimensions.
        rate: learning rate, of the size that AdamW's would have.
        weight_decay: decoupled, as AdamW's.
    """

    def __init__(self, matrices: Iterable[torch.nn.Parameter], rate: float, weight_decay: float) -> None:
        super().__init__(list(matrices), {"lr": rate, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Applies the gradients; a closure is not called."""
        for group in self.param_groups:
            rate = group["lr"]
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                average = state["momentum_buffer"].lerp_(matrix.grad, 1 - _MOMENTUM)
                update = orthogonal(matrix.grad.lerp(average, _MOMENTUM))
                matrix.mul_(1 - rate * group["weight_decay"])
                matrix.add_(update, alpha=-rate * _SIZE * max(matrix.shape) ** 0.5)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Of an [m, n] matrix's singular values, all become about 1: five iterations of Newton and Schulz."""
    first, third, fifth = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.t() if tall else matrix).to(product_dtype(matrix.device.type))
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.t()
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=third, alpha=fifth), x, beta=first)
    return (x.t() if tall else x).to(matrix.dtype)
