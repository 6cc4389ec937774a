from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.muon import Muon, orthogonal
from training.precision import product_dtype


def test_a_cpu_multiplies_in_bf16_only_where_it_has_instructions_for_it() -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    able = "avx512_bf16" in flags or "amx_bf16" in flags
    assert product_dtype("cpu") is (torch.bfloat16 if able else torch.float32)
    assert product_dtype("cuda") is torch.bfloat16


@pytest.mark.parametrize("shape", [(24, 64), (64, 24), (32, 32)])
def test_singular_values_become_about_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(matrix))
    assert values[: min(shape) * 3 // 4].min() > 0.6
    assert values.max() < 1.3


def test_it_updates_as_the_library_does() -> None:
    generator = torch.Generator().manual_seed(1)
    ours = torch.nn.Parameter(torch.randn(24, 64, generator=generator))
    theirs = torch.nn.Parameter(ours.detach().clone())
    optimizers = (
        Muon([ours], 0.01, 0.1),
        torch.optim.Muon([theirs], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(4):
        gradient = torch.randn(24, 64, generator=generator)
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    # The library multiplies in bf16.
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=3e-3)
