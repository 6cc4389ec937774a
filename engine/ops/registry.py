"""Chooses the operations for a machine."""

from __future__ import annotations

from engine.ops.base import Ops
from engine.ops.torch_ops import TorchOps

NAMES = ("torch",)


def create_ops(name: str) -> Ops:
    """Makes the operations of that name. Raises ValueError naming those there are."""
    if name not in NAMES:
        raise ValueError(f"ops {name!r} do not exist; there are {', '.join(NAMES)}")
    return TorchOps()
