"""Handovers that wait for blocks, first come first served."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from engine.api import EngineRequest, Reservation
from worker.host import EngineHost

# Blocks may also come free without a step: by a cancel, or when a quarantined read settles.
_RETRY_S = 0.05


class Room:
    """Gives reservations out in the order of asking, while other sequences decode on.

    Only the first in the queue tries: a later, smaller handover that overtook it could keep it waiting for
    ever. A reservation is made whole or not at all, so two of them never wait for each other.
    """

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        # Wakes its waiters in the order in which they came.
        self._turn = asyncio.Lock()
        self._stepped = asyncio.Event()

    def stepped(self) -> None:
        """The engine has made a step: blocks may have come free."""
        self._stepped.set()

    async def reserve(self, request: EngineRequest) -> Reservation:
        """Waits for its turn and for room. Raises RequestTooLargeError where there can never be room.

        When it is cancelled a reservation may have been made: `Engine.abandon` must follow.
        """
        async with self._turn:
            await self._host.call(lambda engine: engine.can_reserve(request))
            while True:
                self._stepped.clear()
                reservation = await self._host.call(lambda engine: engine.reserve(request))
                if reservation is not None:
                    return reservation
                with suppress(TimeoutError):
                    # Unlike `wait_for` this never loses a cancellation.
                    async with asyncio.timeout(_RETRY_S):
                        await self._stepped.wait()
