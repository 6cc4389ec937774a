"""Waiting for work that something else may cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Never, TypeVar

T = TypeVar("T")


async def unless_set(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Awaits `work`, but not beyond the moment when `event` is set: it is cancelled then."""
    await _first(asyncio.create_task(work), asyncio.create_task(event.wait()))


async def unless_fails(watch: Coroutine[Any, Any, Never], work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work` while `watch` has nothing to say; else it is cancelled and the watch's error raised."""
    working, watching = asyncio.create_task(work), asyncio.create_task(watch)
    await _first(working, watching)
    # Only an error ends the watch: it says more than what became of the work because of it.
    return (watching if watching.done() and not watching.cancelled() else working).result()


async def _first(working: asyncio.Task[Any], other: asyncio.Task[Any]) -> None:
    """Returns when one of them is done, and the other one cancelled. Raises the work's own error."""
    try:
        await asyncio.wait({working, other}, return_when=asyncio.FIRST_COMPLETED)
        if working.done() and not other.done():
            working.result()
    finally:
        for task in (working, other):
            task.cancel()
        await asyncio.gather(working, other, return_exceptions=True)
