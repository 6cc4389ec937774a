"""Large memory of the host on huge pages, where the system has them.

What reads all over such memory, or streams through it, spends no time on address translation then.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch

_HUGE_PAGE = 2 << 20


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
