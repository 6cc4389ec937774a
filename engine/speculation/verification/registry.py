"""Finds verification rules: any module here that defines `create(sampler) -> Chooser`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

import engine.speculation.verification
from engine.sampling.sampler import Sampler
from engine.speculation.config import COUPLED
from engine.speculation.verification.base import Bounds, Chooser
from engine.speculation.verification.by_seed import ChooserBySeed
from engine.speculation.verification.verifier import Verifier


@cache
def rules() -> dict[str, Callable[[Sampler], Chooser]]:
    """File name -> constructor of every rule."""
    package = engine.speculation.verification
    modules = {
        module.name: importlib.import_module(f"{package.__name__}.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    }
    return {name: module.create for name, module in sorted(modules.items()) if hasattr(module, "create")}


def create_verifier(name: str, sampler: Sampler, bounds: Bounds) -> Verifier:
    """Makes a verifier that follows the rule `name`, and "coupled" for requests with a seed of their own.

    Raises:
        ValueError: no such rule.
    """
    if name not in rules():
        raise ValueError(f"verification is {name!r}, but must be one of {', '.join(rules())}")
    chooser = rules()[name](sampler)
    if name != COUPLED:
        chooser = ChooserBySeed(rules()[COUPLED](sampler), chooser)
    return Verifier(chooser, bounds)
