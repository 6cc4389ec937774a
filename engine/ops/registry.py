"""Chooses the operations for a machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from engine.ops.base import Ops
from engine.ops.cpu.build import BuildError, best_target, build, require_compiler
from engine.ops.cpu.library import load_kernels
from engine.ops.cpu.ops import CpuOps
from engine.ops.torch_ops import TorchOps

logger = logging.getLogger(__name__)

NAMES = ("auto", "torch", "cpu")


@dataclass(frozen=True, slots=True)
class Selection:
    """The operations to use now, and what makes better ones in seconds; None where there are none."""

    ops: Ops
    later: Callable[[], Ops] | None = None


def select_ops(name: str, *, device: str, dtype: torch.dtype, kernel_cache: Path) -> Selection:
    """Chooses the operations.

    Args:
        name: "torch"; "cpu", which builds the kernels now where they are not built; or "auto": the CPU's
            own where they can be had, torch's until they are built.
        device: torch device of the weights.
        dtype: of the activations.
        kernel_cache: folder of built kernels, beside those of the package.

    Raises:
        ValueError: no such name, or the CPU's operations are asked for by name and cannot be had.
    """
    if name not in NAMES:
        raise ValueError(f"ops {name!r} do not exist; there are {', '.join(NAMES)}")
    fits = device == "cpu" and dtype is torch.float32
    if name == "torch" or (name == "auto" and not fits):
        return Selection(TorchOps())
    if not fits:
        raise ValueError(f"ops 'cpu' compute on device 'cpu' in float32, not on {device!r} in {dtype}")
    try:
        kernels = load_kernels(kernel_cache)
        if kernels is not None:
            return Selection(CpuOps(kernels))
        require_compiler()
        if name == "cpu":
            return Selection(build_cpu_ops(kernel_cache))
    except BuildError as error:
        if name == "cpu":
            raise ValueError(f"ops 'cpu' cannot be had: {error}") from error
        _say_once(f"the engine uses torch instead of its CPU kernels: {error}")
        return Selection(TorchOps())
    return Selection(TorchOps(), later=lambda: build_cpu_ops(kernel_cache))


def build_cpu_ops(kernel_cache: Path) -> Ops:
    """Builds the kernels, seconds where they are not there yet. Raises BuildError."""
    build(best_target(), kernel_cache)
    kernels = load_kernels(kernel_cache)
    assert kernels is not None
    return CpuOps(kernels)


@cache
def _say_once(message: str) -> None:
    logger.warning(message)
