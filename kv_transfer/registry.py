"""Finds transports: one file in `transports/` each, named as the transport is."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence

from kv_transfer import transports
from kv_transfer.transports.base import Transport, TransportConfig
from kv_transfer.types import NoCommonTransportError

_SEAM = "base"


def names() -> tuple[str, ...]:
    """Every transport that this build has, in alphabetical order. Imports none of them."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(transports.__path__) if m.name != _SEAM))


def create(name: str, config: TransportConfig) -> Transport:
    """Opens the transport of that name. Raises ValueError for an unknown one."""
    if name not in names():
        raise ValueError(f"transport {name!r} is not one of {', '.join(names())}")
    # By name: only a chosen transport's libraries are loaded (NIXL's cost memory and threads).
    module = importlib.import_module(f"{transports.__name__}.{name}")
    factory: Callable[[TransportConfig], Transport] = module.create
    return factory(config)


def choose(offered: Sequence[str], supported: Sequence[str]) -> str:
    """First of `offered` (best first) that is also in `supported`. Raises NoCommonTransportError."""
    for name in offered:
        if name in supported:
            return name
    raise NoCommonTransportError(
        f"no common transport: the reader offers {', '.join(offered) or 'none'}; "
        f"this worker supports {', '.join(supported) or 'none'}"
    )
