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

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
Kernel = Callable[..., None]

_LINE = 64
_SLAB = 64 << 20


class Step(ctypes.Structure):
    """What all layers of a step share: `Step` of attention.h. Pointers are to int64 arrays, or none."""

    _fields_ = (
        ("slots", _POINTER),
        ("tables", _POINTER),
        ("query_starts", _POINTER),
        ("contexts", _POINTER),
        ("positions", _POINTER),
        ("visible", _POINTER),
        ("tree_starts", _POINTER),
        ("first_keys", _POINTER),
        ("tokens", ctypes.c_int64),
        ("sequences", ctypes.c_int64),
        ("table_width", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
    )


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
        linear: (x, rows, in, norm, eps, panels, bias, out, columns, add)
        linear_int8: (x, rows, in, norm, eps, panels, scales, bias, out, columns, add)
        gated_linear: as linear, but for the last: (..., columns of gate, whether GELU)
        gated_linear_int8: likewise
        rms_norm: (x, rows, n, weight, eps, out)
        rotate: (heads, stride, tokens, queries, keys, head_dim, cos, sin, half, query_norm, key_norm,
            query_eps, key_eps)
        attend: (step, query, query_stride, key, value, key_stride, kv, out, scale, softcap, window,
            whether coarse)
        pack: (weight, out, in, panels, step)
        pack_int8: likewise
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        p, n, i, f = _POINTER, _LONG, _INT, _FLOAT
        self.linear = self._kernel("kv_linear", p, n, n, p, f, p, p, p, n, i)
        self.linear_int8 = self._kernel("kv_linear_int8", p, n, n, p, f, p, p, p, p, n, i)
        self.gated_linear = self._kernel("kv_gated_linear", p, n, n, p, f, p, p, p, n, i)
        self.gated_linear_int8 = self._kernel("kv_gated_linear_int8", p, n, n, p, f, p, p, p, p, n, i)
        self.rms_norm = self._kernel("kv_rms_norm", p, n, n, p, f, p)
        self.rotate = self._kernel("kv_rotate", p, n, n, n, n, n, p, p, n, p, p, f, f)
        self.attend = self._kernel("kv_attend", ctypes.POINTER(Step), p, n, p, p, n, p, p, f, f, n, i)
        self.pack = self._kernel("kv_pack", p, n, n, p, n)
        self.pack_int8 = self._kernel("kv_pack_int8", p, n, n, p, n)
        self._threads = self._kernel("kv_threads", i)
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
