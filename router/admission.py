"""The bounded queue in front of the dispatcher: so many run, so many wait, the rest is sent away."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from router.generation import Admission, ErrorKind, GenerationError

_RETRY_MIN_S = 1.0
_RETRY_MAX_S = 60.0
# Ends over which the rate of service is measured.
_RATE_ENDS = 64


class AdmissionQueue:
    """First come, first served.

    Invariant: while somebody waits, every place is taken.
    """

    def __init__(self, max_running: int, max_queued: int) -> None:
        self._max_running = max_running
        self._max_queued = max_queued
        self._running = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._ends: deque[float] = deque(maxlen=_RATE_ENDS)

    @property
    def running(self) -> int:
        """Requests admitted and not ended."""
        return self._running

    @property
    def queued(self) -> int:
        """Requests waiting for a place."""
        return len(self._waiters)

    @asynccontextmanager
    async def admit(
        self, deadline: float | None = None, arrived_at: float | None = None
    ) -> AsyncIterator[Admission]:
        """See `router.generation.Dispatcher.admit`."""
        queued_at = time.monotonic()
        await self._enter(deadline)
        try:
            now = time.monotonic()
            yield Admission(queued_at if arrived_at is None else arrived_at, now - queued_at)
        finally:
            self._ends.append(time.monotonic())
            self._leave()

    async def _enter(self, deadline: float | None) -> None:
        if self._running < self._max_running:
            self._running += 1
            return
        if len(self._waiters) >= self._max_queued:
            raise GenerationError(
                ErrorKind.OVERLOADED,
                f"{self._running} requests run and {len(self._waiters)} wait; the queue is full",
                self._retry_after_s(),
            )
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(place)
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.time()):
                await place
        except TimeoutError:
            self._give_up(place)
            raise GenerationError(
                ErrorKind.DEADLINE, "the deadline passed while the request waited in the queue"
            ) from None
        except asyncio.CancelledError:
            self._give_up(place)
            raise

    def _give_up(self, place: asyncio.Future[None]) -> None:
        """Takes a waiter out; a place that was handed to it in the same moment goes to the next."""
        if place.done() and not place.cancelled():
            self._leave()
        elif place in self._waiters:
            self._waiters.remove(place)

    def _leave(self) -> None:
        """Hands the place to the first waiter, or frees it."""
        while self._waiters:
            place = self._waiters.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._running -= 1

    def _retry_after_s(self) -> float:
        """Seconds until as many requests have ended as are in the queue, at the recent rate of ends."""
        if len(self._ends) < 2 or self._ends[-1] == self._ends[0]:
            return _RETRY_MIN_S
        rate = (len(self._ends) - 1) / (time.monotonic() - self._ends[0])
        return float(math.ceil(min(_RETRY_MAX_S, max(_RETRY_MIN_S, (len(self._waiters) + 1) / rate))))
