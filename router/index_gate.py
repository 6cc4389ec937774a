"""The prefix index as the router uses it: a help that may be absent, never a reason to fail or to wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from prefix_index.hashing import HASH_BYTES
from prefix_index.index import IndexMatch, IndexUnavailableError, PrefixIndex
from router.background import BackgroundTasks
from router.metrics import RouterMetrics

# How often an index that was last seen dead or unused is asked whether it lives, seconds.
_PROBE_S = 1.0
# Life of a booking: longer than a worker's report needs to show the load, seconds.
_BOOKING_TTL_S = 2.0
# A chain that nobody holds.
_PROBE_CHAIN = (bytes(HASH_BYTES),)


class IndexGate:
    """Wraps the index; once it failed, only a probe asks it until it answers again.

    The index itself logs each loss and return.

    Args:
        index: the index; None where the router has none.
        metrics: told of each change.
    """

    def __init__(self, index: PrefixIndex | None, metrics: RouterMetrics) -> None:
        self._index = index
        self._metrics = metrics
        self._background = BackgroundTasks()
        self._prober: asyncio.Task[None] | None = None
        self._available = False
        self._asked_at = 0.0

    @property
    def available(self) -> bool:
        """Whether the index answered when it was last asked, at most about a second ago."""
        return self._available

    async def start(self) -> None:
        """Asks for the first time and begins to probe."""
        if self._index is None:
            return
        await self._ask(self._index, _PROBE_CHAIN)
        self._prober = asyncio.create_task(self._probe(self._index))

    async def match(self, chain: Sequence[bytes]) -> IndexMatch | None:
        """One lookup; None where the index does not answer."""
        if self._index is None or not self._available:
            return None
        return await self._ask(self._index, chain)

    def book(self, worker_id: str, request_id: str, prefill_tokens: int, over: asyncio.Event) -> None:
        """Books load on the side, until `over` is set: the load is over, or in the worker's reports."""
        if self._index is not None and self._available:
            self._background.spawn(self._hold(self._index, worker_id, request_id, prefill_tokens, over))

    async def close(self) -> None:
        """Ends probing and bookings, then closes the index."""
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.gather(self._prober, return_exceptions=True)
        await self._background.close()
        if self._index is not None:
            await self._index.close()

    async def _ask(self, index: PrefixIndex, chain: Sequence[bytes]) -> IndexMatch | None:
        self._asked_at = time.monotonic()
        try:
            match = await index.match(chain)
        except IndexUnavailableError:
            self._note(available=False)
            return None
        self._note(available=True)
        return match

    def _note(self, *, available: bool) -> None:
        self._available = available
        self._metrics.index_available.set(available)

    async def _probe(self, index: PrefixIndex) -> None:
        while True:
            await asyncio.sleep(_PROBE_S)
            if not self._available or time.monotonic() - self._asked_at >= _PROBE_S:
                await self._ask(index, _PROBE_CHAIN)

    async def _hold(
        self, index: PrefixIndex, worker_id: str, request_id: str, tokens: int, over: asyncio.Event
    ) -> None:
        try:
            await index.book(worker_id, request_id, tokens, _BOOKING_TTL_S)
            async with asyncio.timeout(_BOOKING_TTL_S):
                await over.wait()
            await index.unbook(worker_id, request_id)
        except TimeoutError:
            return  # The entry expires by itself.
        except IndexUnavailableError:
            self._note(available=False)
