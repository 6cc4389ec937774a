"""Finds attention backends: any module here that defines `create(config, ops) -> AttentionBackend`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

import engine.attention
from engine.attention import cpu
from engine.attention.base import AttentionBackend
from engine.models.config import ModelConfig
from engine.ops.base import Ops
from engine.ops.cpu.ops import CpuOps

AUTO = "auto"


@cache
def backends() -> dict[str, Callable[[ModelConfig, Ops, bool], AttentionBackend]]:
    """File name -> constructor of every backend."""
    modules = {
        module.name: importlib.import_module(f"{engine.attention.__name__}.{module.name}")
        for module in pkgutil.iter_modules(engine.attention.__path__)
    }
    return {name: module.create for name, module in sorted(modules.items()) if hasattr(module, "create")}


def create_backend(name: str, config: ModelConfig, ops: Ops, *, coarse: bool = False) -> AttentionBackend:
    """Makes a backend for one model; "auto" is the fastest for its operations.

    `coarse` allows a backend to round what it multiplies to bfloat16 where that is faster, as fits a model
    whose weights are quantised. It need not: only the CPU's does.

    Raises:
        ValueError: no backend of that name, or it does not serve this model or these operations.
    """
    if name == AUTO:
        name = "cpu" if isinstance(ops, CpuOps) and cpu.fits(config) else "sdpa"
    if name not in backends():
        raise ValueError(
            f"attention backend {name!r} does not exist; there are {', '.join((AUTO, *backends()))}"
        )
    return backends()[name](config, ops, coarse)
