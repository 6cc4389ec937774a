"""Cleans up after workers that are gone, in batches, by whoever noticed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from prefix_index.connection import IndexConnection
from prefix_index.errors import IndexUnavailableError
from prefix_index.scripts import SWEEP

_BATCH_BLOCKS = 512
# Between two batches, so that lookups are never held up by more than one of them.
_PAUSE_S = 0.002


class Sweeper:
    """At most one background task that sweeps until nothing is dirty.

    Several sweepers, in any processes, share the work. Where one stops (Redis away, process gone) the next
    that notices goes on.
    """

    def __init__(self, connection: IndexConnection) -> None:
        self._connection = connection
        self._task: asyncio.Task[None] | None = None

    def notice(self) -> None:
        """Starts to sweep, if it is not being done already."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._sweep(), name="index-sweeper")

    async def finish(self, timeout_s: float) -> None:
        """Sweeps until all is clean or the time is over."""
        self.notice()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=timeout_s)

    async def close(self) -> None:
        """Stops after the batch in progress at the latest."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _sweep(self) -> None:
        with suppress(IndexUnavailableError):
            more = True
            while more:
                more = await self._connection.run(SWEEP, _BATCH_BLOCKS)
                await asyncio.sleep(_PAUSE_S)
