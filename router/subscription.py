"""What a decode worker says about one attempt, on its way to the request that waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from kvrelay.v1 import decode_pb2


@dataclass(frozen=True, slots=True)
class SessionLost:
    """Last event of a subscription whose stream broke."""

    reason: str


SessionEvent = decode_pb2.TokenEvent | decode_pb2.EndEvent | SessionLost


class Subscription:
    """One attempt on one decode worker. Its events end with an EndEvent or a SessionLost.

    Tokens that wait are joined into one event: a client that reads slowly gets fewer and larger pieces, and
    costs less than one that keeps up. One task at a time may wait for events.

    Args:
        request_id: of the request.
        attempt: its number.
    """

    __slots__ = ("_events", "_waiter", "attempt", "request_id")

    def __init__(self, request_id: str, attempt: int) -> None:
        self.request_id = request_id
        self.attempt = attempt
        self._events: deque[SessionEvent] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: SessionEvent) -> None:
        """Adds what came next. A TokenEvent may be changed by later ones until it is taken."""
        last = self._events[-1] if self._events else None
        if isinstance(event, decode_pb2.TokenEvent) and isinstance(last, decode_pb2.TokenEvent):
            index = last.index
            if event.index == index + len(last.token_ids):
                last.MergeFrom(event)
                last.index = index
                return
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> SessionEvent:
        """The oldest event that was not taken yet; waits for one."""
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._events.popleft()
