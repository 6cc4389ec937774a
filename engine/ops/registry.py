"""Chooses the operations for a machine."""

from __future__ import annotations

from engine.ops.base import Ops
from engine.ops.cpu.library import load_kernels
from engine.ops.cpu.ops import CpuOps
from engine.ops.torch_ops import TorchOps

NAMES = ("torch", "cpu")


def create_ops(name: str) -> Ops:
    """Makes the operations of that name. Raises ValueError naming those there are."""
    if name not in NAMES:
        raise ValueError(f"ops {name!r} do not exist; there are {', '.join(NAMES)}")
    if name == "torch":
        return TorchOps()
    kernels = load_kernels()
    if kernels is None:
        raise ValueError("ops 'cpu' need their kernels, which are not built")
    return CpuOps(kernels)
