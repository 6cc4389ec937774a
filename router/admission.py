"""The bounded queue in front of the dispatcher: so many generations run, so many requests wait by priority,
the rest is sent away."""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from router.generation import Admission, ErrorKind, GenerationError

_RETRY_MIN_S = 1.0
_RETRY_MAX_S = 60.0
# Ends over which the rate of service is measured.
_RATE_ENDS = 64


class _Waiter:
    """A client request in the queue, and the places that it needs."""

    def __init__(self, places: int, priority: int) -> None:
        self.places = places
        self.priority = priority
        self.admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class AdmissionQueue:
    """Lower priority first, equals in order of arrival; a request takes a place for each of its generations.

    Invariant: while somebody waits, fewer places are free than the first in the queue needs.

    Args:
        max_running: places.
        max_queued: client requests that may wait.
    """

    def __init__(self, max_running: int, max_queued: int) -> None:
        self._max_running = max_running
        self._max_queued = max_queued
        self._running = 0
        self._waiters: deque[_Waiter] = deque()
        self._ends: deque[float] = deque(maxlen=_RATE_ENDS)

    @property
    def running(self) -> int:
        """Places taken."""
        return self._running

    @property
    def queued(self) -> int:
        """Client requests waiting for their places."""
        return len(self._waiters)

    @asynccontextmanager
    async def admit(
        self,
        deadline: float | None = None,
        arrived_at: float | None = None,
        places: int = 1,
        priority: int = 0,
    ) -> AsyncIterator[Admission]:
        """See `router.generation.Dispatcher.admit`."""
        queued_at = time.monotonic()
        # Otherwise a request larger than all there is would wait for ever.
        places = min(places, self._max_running)
        await self._enter(deadline, places, priority)
        try:
            now = time.monotonic()
            yield Admission(queued_at if arrived_at is None else arrived_at, now - queued_at)
        finally:
            self._ends.append(time.monotonic())
            self._leave(places)

    async def _enter(self, deadline: float | None, places: int, priority: int) -> None:
        first = not self._waiters or priority < self._waiters[0].priority
        if first and self._running + places <= self._max_running:
            self._running += places
            return
        if len(self._waiters) >= self._max_queued:
            raise GenerationError(
                ErrorKind.OVERLOADED,
                f"{self._running} answers are generated and {len(self._waiters)} requests wait; the queue is "
                "full",
                self._retry_after_s(),
            )
        waiter = _Waiter(places, priority)
        place = bisect_right(self._waiters, priority, key=lambda other: other.priority)
        self._waiters.insert(place, waiter)
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.time()):
                await waiter.admitted
        except TimeoutError:
            self._give_up(waiter)
            raise GenerationError(
                ErrorKind.DEADLINE, "the deadline passed while the request waited in the queue"
            ) from None
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise

    def _give_up(self, waiter: _Waiter) -> None:
        """Takes a waiter out; places that were handed to it in the same moment go to the next."""
        if waiter.admitted.done() and not waiter.admitted.cancelled():
            self._leave(waiter.places)
        elif waiter in self._waiters:
            self._waiters.remove(waiter)
            # Those behind it may need fewer places than it did.
            self._hand_out()

    def _leave(self, places: int) -> None:
        self._running -= places
        self._hand_out()

    def _hand_out(self) -> None:
        """Lets the first waiters in, as far as the places go."""
        while self._waiters:
            first = self._waiters[0]
            if first.admitted.done():
                # It was cancelled, and takes itself out when it runs.
                self._waiters.popleft()
            elif self._running + first.places <= self._max_running:
                self._waiters.popleft()
                self._running += first.places
                first.admitted.set_result(None)
            else:
                return

    def _retry_after_s(self) -> float:
        """Seconds until as many requests have ended as are in the queue, at the recent rate of ends."""
        if len(self._ends) < 2 or self._ends[-1] == self._ends[0]:
            return _RETRY_MIN_S
        rate = (len(self._ends) - 1) / (time.monotonic() - self._ends[0])
        return float(math.ceil(min(_RETRY_MAX_S, max(_RETRY_MIN_S, (len(self._waiters) + 1) / rate))))
