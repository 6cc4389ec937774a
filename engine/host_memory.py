"""Large memory of the host on huge pages, where the system has them.

What reads all over such memory, or streams through it, spends no time on address translation then.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress

import torch

_HUGE_PAGE = 2 << 20
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14, which the module mmap does not name."""
_POPULATED_AT_ONCE = 1 << 23


def map_pages(size: int) -> torch.Tensor:
    """Zeroed memory that begins at a huge page; pages that nobody writes to take none.

    Returns:
        [size] bytes; the memory is freed with the last tensor that lies in it.

    Raises:
        OSError, OverflowError, ValueError: the memory is not there.
    """
    memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages refuses.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_PAGE
    return whole[start : start + size]


def populate(memory: torch.Tensor) -> None:
    """Has the system provide all pages of [size] bytes, the first ones first; what is in them stays as it is.

    A page that is first needed in use costs more than what is written to it: in a virtual machine, whose own
    host provides pages one by one as well, some milliseconds for each MiB. Other threads go on meanwhile.
    """
    if sys.platform != "linux":
        return
    # Unlike the call of the module mmap, one through ctypes does not hold the interpreter's lock.
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    address = memory.data_ptr() & -mmap.PAGESIZE
    end = memory.data_ptr() + len(memory)
    for start in range(address, end, _POPULATED_AT_ONCE):
        # Refused by kernels before 5.14: then pages come as they are needed.
        if madvise(start, min(_POPULATED_AT_ONCE, end - start), _POPULATE_WRITE):
            return
