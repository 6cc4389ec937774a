"""Finds a policy by its file name. A policy's module has `create(settings) -> RoutingPolicy`."""

from __future__ import annotations

import importlib
import pkgutil
from typing import cast

import router.policies
from router.policies.base import PolicySettings, RoutingPolicy

_NOT_POLICIES = frozenset({"base", "registry"})


def policy_names() -> list[str]:
    """Names of all policies, one for each file of the folder."""
    modules = pkgutil.iter_modules(router.policies.__path__)
    return sorted(module.name for module in modules if module.name not in _NOT_POLICIES)


def create_policy(name: str, settings: PolicySettings) -> RoutingPolicy:
    """Makes the policy of that name. Raises ValueError that lists the known names."""
    known = policy_names()
    if name not in known:
        raise ValueError(f"unknown routing policy {name!r}; known: {', '.join(known)}")
    module = importlib.import_module(f"{router.policies.__name__}.{name}")
    return cast(RoutingPolicy, module.create(settings))
