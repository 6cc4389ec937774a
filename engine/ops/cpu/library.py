"""The built kernels as Python functions. What they compute is said in their C++ sources."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from engine.host_memory import map_pages
from engine.ops.cpu.build import DEFAULT_CACHE, BuildError, Target, best_target, find
from engine.ops.cpu.operations import Operation

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
Kernel = Callable[..., None]

_LINE = 64
_SLAB = 64 << 20


class Slabs:
    """Memory for weights: one behind the other on huge pages, where the system has them.

    Allocated one by one they would begin and end in the midst of such pages, and get small ones there. A slab
    is freed with the last tensor that lies in it. Threads may take at once.
    """

    def __init__(self) -> None:
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> torch.Tensor:
        """Bytes that begin at a cache line."""
        with self._lock:
            if self._used + size > len(self._slab):
                self._slab, self._used = map_pages(max(size, _SLAB)), 0
            piece = self._slab[self._used : self._used + size]
            self._used += -(-size // _LINE) * _LINE
            return piece


class Kernels:
    """One library. Its thread pool is the process's: concurrent calls run, one of them on several threads.

    Attributes:
        compute: (operations, how many); one after the other
        pack: (weight, out, in, panels, step)
        pack_int8: likewise
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        p, n = _POINTER, _LONG
        self.compute = self._kernel("kv_compute", ctypes.POINTER(Operation), n)
        self.pack = self._kernel("kv_pack", p, n, n, p, n)
        self.pack_int8 = self._kernel("kv_pack_int8", p, n, n, p, n)
        self._threads = self._kernel("kv_threads", _INT)
        self._slabs = Slabs()
        self.set_threads(torch.get_num_threads())

    def set_threads(self, threads: int) -> None:
        """Threads of each call, for the whole process; at the start, torch's number."""
        self._threads(threads)

    def allocate(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory for weights, behind what was asked for before; see `Slabs`."""
        return self._slabs.take(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)

    def _kernel(self, name: str, *arguments: object) -> Kernel:
        function = getattr(self._library, name)
        function.argtypes = arguments
        function.restype = None
        kernel: Kernel = function
        return kernel


@cache
def _load(path: Path) -> Kernels:
    try:
        return Kernels(path)
    except OSError as error:
        raise BuildError(f"{path} cannot be loaded: {error}") from error


def load_kernels(cache_dir: Path = DEFAULT_CACHE, target: Target | None = None) -> Kernels | None:
    """The kernels where they are built, else None. One library for all who ask in this process.

    Args:
        cache_dir: where to look beside the package.
        target: for which CPU; default: the best for this one.

    Raises:
        BuildError: there are none for this CPU, or what is there cannot be loaded.
    """
    path = find(target or best_target(), cache_dir)
    return None if path is None else _load(path)
