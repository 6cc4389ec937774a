"""Finds draft methods: any module in drafters/ that defines `create(config, target) -> Drafter`.

One that keeps KV in the model's blocks also defines `layers(config, model) -> int`, for the pool is there
before the drafter is. One that reads features of the model says `READS_FEATURES = True`: it needs those of
the context, wherever that is computed. One that has no draft model or head says `NEEDS_MODEL = False`:
requests may choose it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from types import ModuleType

from engine.models.config import ModelConfig
from engine.speculation import drafters
from engine.speculation.base import Drafter, Target
from engine.speculation.config import SpeculationConfig
from engine.speculation.lookup_first import LookupFirst
from engine.speculation.settings import lookup_range

NONE = "none"


@cache
def methods() -> dict[str, ModuleType]:
    """File name -> module of every draft method."""
    modules = {
        module.name: importlib.import_module(f"{drafters.__name__}.{module.name}")
        for module in pkgutil.iter_modules(drafters.__path__)
    }
    return {name: module for name, module in sorted(modules.items()) if hasattr(module, "create")}


@cache
def methods_without_model() -> tuple[str, ...]:
    """Methods that need nothing but text."""
    return tuple(name for name, module in methods().items() if not getattr(module, "NEEDS_MODEL", True))


def draft_layers(config: SpeculationConfig, model: ModelConfig) -> int:
    """Layers that the pool of a model needs behind the model's own. Raises as `create_drafter`."""
    if config.method == NONE:
        return 0
    layers: Callable[[SpeculationConfig, ModelConfig], int] | None
    layers = getattr(_module(config), "layers", None)
    return 0 if layers is None else layers(config, model)


def reads_features(config: SpeculationConfig) -> bool:
    """Whether a worker that only prefills has to tell what the method's drafter goes on from."""
    return config.method != NONE and getattr(_module(config), "READS_FEATURES", False)


def create_drafter(config: SpeculationConfig, target: Target) -> Drafter | None:
    """Makes a drafter; None for method "none".

    Raises:
        ValueError: no such method, or a setting that it cannot honour; the message names it and what it may
            be.
        ModelError: the draft model or head is missing, broken, or not made for the target.
    """
    if config.lookup_first and config.method in (NONE, *methods_without_model()):
        raise ValueError(
            f"lookup_first is true, but method is {config.method!r}: it is for methods with a model"
        )
    if config.method == NONE:
        return None
    drafter: Drafter = _module(config).create(config, target)
    if not config.lookup_first:
        return drafter
    shortest, longest = lookup_range(config)
    return LookupFirst(drafter, shortest, longest, config.num_speculative_tokens)


def _module(config: SpeculationConfig) -> ModuleType:
    if config.method not in methods():
        raise ValueError(f"method is {config.method!r}, but must be one of {', '.join((NONE, *methods()))}")
    return methods()[config.method]
