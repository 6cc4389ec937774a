"""Finds attention backends: any module of this package that defines `create(config) -> AttentionBackend`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

import engine.attention
from engine.attention.base import AttentionBackend
from engine.models.config import ModelConfig


@cache
def backends() -> dict[str, Callable[[ModelConfig], AttentionBackend]]:
    """File name -> constructor of every backend."""
    modules = {
        module.name: importlib.import_module(f"{engine.attention.__name__}.{module.name}")
        for module in pkgutil.iter_modules(engine.attention.__path__)
    }
    return {name: module.create for name, module in sorted(modules.items()) if hasattr(module, "create")}


def create_backend(name: str, config: ModelConfig) -> AttentionBackend:
    """Makes a backend for one model. Raises ValueError naming the backends there are."""
    if name not in backends():
        raise ValueError(f"attention backend {name!r} does not exist; there are {', '.join(backends())}")
    return backends()[name](config)
