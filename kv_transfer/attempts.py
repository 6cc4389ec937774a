"""Refuses dispatches that a router has overtaken by a later one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class StaleAttemptError(Exception):
    """A later attempt of the same request has been seen here."""


class AttemptFence:
    """Remembers the highest attempt seen of each request, for a while. Not thread-safe.

    The memory is bounded twice: an entry is forgotten `memory_s` after its attempt was last admitted, and
    beyond `capacity` requests the one admitted longest ago is. A dispatch delayed by more than that is let
    through; it must have died of its deadline before.

    Args:
        memory_s: longest delay of a dispatch that is still refused.
        capacity: requests remembered at most.
        clock: monotonic seconds.
    """

    def __init__(self, *, memory_s: float, capacity: int, clock: Callable[[], float]) -> None:
        if memory_s <= 0 or capacity < 1:
            raise ValueError("memory_s must be positive and capacity at least 1")
        self._memory_s = memory_s
        self._capacity = capacity
        self._clock = clock
        # request id -> (highest attempt, when it was last admitted), longest ago first.
        self._seen: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def admit(self, request_id: str, attempt: int) -> None:
        """Notes an attempt. Raises StaleAttemptError where a higher one was seen; an equal one passes."""
        now = self._clock()
        self._forget(now)
        highest, _ = self._seen.get(request_id, (attempt, now))
        if attempt < highest:
            raise StaleAttemptError(f"request {request_id}: attempt {attempt} comes after attempt {highest}")
        self._seen[request_id] = (attempt, now)
        self._seen.move_to_end(request_id)
        if len(self._seen) > self._capacity:
            self._seen.popitem(last=False)

    def _forget(self, now: float) -> None:
        while self._seen:
            request_id, (_, admitted) = next(iter(self._seen.items()))
            if now - admitted < self._memory_s:
                return
            del self._seen[request_id]
