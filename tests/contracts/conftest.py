"""Every implementation of the operations of a decoder layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.ops.base import Ops
from engine.ops.cpu.build import PACKAGED, build, supported_targets
from engine.ops.cpu.library import load_kernels
from engine.ops.cpu.ops import CpuOps
from engine.ops.torch_ops import TorchOps


def _cpu(target_name: str) -> Ops:
    target = next(target for target in supported_targets() if target.name == target_name)
    build(target, PACKAGED)
    kernels = load_kernels(target=target)
    assert kernels is not None
    kernels.set_threads(2)
    return CpuOps(kernels)


# Every kind of CPU that this one can stand for, not only the best.
_IMPLEMENTATIONS: dict[str, Callable[[], Ops]] = {"torch": TorchOps} | {
    f"cpu {target.name}": lambda name=target.name: _cpu(name)  # type: ignore[misc]
    for target in supported_targets()
}
_CPU = [name for name in _IMPLEMENTATIONS if name != "torch"]


@pytest.fixture(params=_IMPLEMENTATIONS)
def ops(request: pytest.FixtureRequest) -> Ops:
    """Each of them."""
    return _IMPLEMENTATIONS[request.param]()


@pytest.fixture(params=_CPU)
def cpu(request: pytest.FixtureRequest) -> Ops:
    """Each kind of CPU's kernels."""
    return _IMPLEMENTATIONS[request.param]()


@pytest.fixture
def every_cpu() -> list[Ops]:
    """All kinds of CPU's kernels."""
    return [_IMPLEMENTATIONS[name]() for name in _CPU]
