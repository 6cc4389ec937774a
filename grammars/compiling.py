"""Bounds of llguidance's compiler, the same wherever a grammar is compiled."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

MAX_SOURCE_CHARS = 128 << 10
"""Longest grammar. The library recurses along chains of rules and nested brackets, at most this often."""

_STACK_BYTES = 256 << 20
"""A grammar of `MAX_SOURCE_CHARS` ends the process in a thread with an ordinary stack."""

_THREADS = 2
"""Compilations at once: they are arithmetic, and requests without a grammar need the cores too."""


def compiling_pool() -> ThreadPoolExecutor:
    """Threads in which any grammar within the bounds can be compiled. The caller shuts them down."""
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")
    started = threading.Barrier(_THREADS)
    before = threading.stack_size(_STACK_BYTES)
    try:
        # Threads are made as work comes, with the size that is set at that moment.
        waiting: list[Future[int]] = [pool.submit(started.wait) for _ in range(_THREADS)]
    finally:
        threading.stack_size(before)
    for future in waiting:
        future.result()
    return pool
