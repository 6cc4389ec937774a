"""Handovers that wait for blocks: by priority, equals first come first served."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from engine.api import Engine, EngineRequest, Reservation
from worker.host import EngineHost

# Blocks may also come free without a step: by a cancel, or when a quarantined read settles.
_RETRY_S = 0.05


class Room:
    """Gives reservations out by priority and order of asking, while other sequences decode on.

    Everybody who waits is tried in one call between two engine steps, up to the first without room: a later,
    smaller handover that overtook that one could keep it waiting for ever. A reservation is made whole or
    not at all, so two of them never wait for each other.
    """

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        # In the order of asking.
        self._waiting: dict[asyncio.Future[Reservation], EngineRequest] = {}
        self._granting: asyncio.Task[None] | None = None
        self._stepped = asyncio.Event()

    def stepped(self) -> None:
        """The engine has made a step: blocks may have come free."""
        self._stepped.set()

    async def reserve(self, request: EngineRequest) -> Reservation:
        """Waits for its turn and for room. Raises RequestTooLargeError where there can never be room.

        When it is cancelled a reservation may have been made: `Engine.abandon` must follow.
        """
        granted: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self._waiting[granted] = request
        if self._granting is None:
            self._granting = asyncio.create_task(self._grant())
        try:
            return await granted
        finally:
            del self._waiting[granted]
            if not self._waiting:
                # Nobody is left to wait for.
                self._stepped.set()

    async def _grant(self) -> None:
        """Serves those who wait, until nobody does."""
        try:
            # Who was cancelled is done already: no reservation may be made behind its `Engine.abandon`.
            while asked := sorted(
                ((g, request) for g, request in self._waiting.items() if not g.done()),
                key=lambda waiting: waiting[1].priority,
            ):
                self._stepped.clear()
                requests = [request for _, request in asked]
                outcomes = await self._host.call(partial(_reserve_each, requests=requests))
                for (granted, _), outcome in zip(asked, outcomes, strict=False):
                    if granted.done():
                        continue
                    if isinstance(outcome, Reservation):
                        granted.set_result(outcome)
                    else:
                        granted.set_exception(outcome)
                if len(outcomes) < len(asked):
                    with suppress(TimeoutError):
                        # Unlike `wait_for` this never loses a cancellation.
                        async with asyncio.timeout(_RETRY_S):
                            await self._stepped.wait()
        # Whatever it is, those who wait must learn of it; a stopped engine is the usual case.
        except Exception as error:
            for granted in self._waiting:
                if not granted.done():
                    granted.set_exception(error)
        finally:
            self._granting = None


def _reserve_each(engine: Engine, requests: Sequence[EngineRequest]) -> list[Reservation | ValueError]:
    """Outcomes of the leading requests, up to the first for which there is no room now."""
    outcomes: list[Reservation | ValueError] = []
    for request in requests:
        try:
            reservation = engine.reserve(request)
        except ValueError as error:
            outcomes.append(error)
            continue
        if reservation is None:
            break
        outcomes.append(reservation)
    return outcomes
