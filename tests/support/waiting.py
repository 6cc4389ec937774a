"""Waiting by polling, with limits generous enough for a loaded machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 60.0


def wait_until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Returns once `condition()` holds. Raises AssertionError after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not so after {limit_s} s"
        time.sleep(0.002)


async def until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """As `wait_until`, on the event loop."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not so after {limit_s} s"
        await asyncio.sleep(0.002)
