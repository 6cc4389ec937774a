"""Finds draft methods: any module in drafters/ that defines `create(config, target) -> Drafter`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from engine.speculation import drafters
from engine.speculation.base import Drafter, Target
from engine.speculation.config import SpeculationConfig

NONE = "none"


@cache
def methods() -> dict[str, Callable[[SpeculationConfig, Target], Drafter]]:
    """File name -> constructor of every draft method."""
    modules = {
        module.name: importlib.import_module(f"{drafters.__name__}.{module.name}")
        for module in pkgutil.iter_modules(drafters.__path__)
    }
    return {name: module.create for name, module in sorted(modules.items()) if hasattr(module, "create")}


def create_drafter(config: SpeculationConfig, target: Target) -> Drafter | None:
    """Makes a drafter; None for method "none".

    Raises:
        ValueError: no such method, or a setting that it cannot honour; the message names it and what it may
            be.
        ModelError: the draft model or head is missing, broken, or not made for the target.
    """
    if config.method == NONE:
        return None
    if config.method not in methods():
        raise ValueError(f"method is {config.method!r}, but must be one of {', '.join((NONE, *methods()))}")
    return methods()[config.method](config, target)
