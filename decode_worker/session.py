"""One router's session: its stream of the moment, its requests, and the grace after a break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from decode_worker.outbox import Outbox
from kvrelay.v1 import decode_pb2


class RouterSession:
    """What outlives a single stream. At most one stream is current; a newer one takes its place.

    When the stream breaks the requests go on for `grace_s`. A stream with the same router id that comes
    back in that time takes the session over and gets every answer again from its first token (see
    `Outbox`): nothing is lost, and what the router has already is recognised by its index. Otherwise
    `on_lost` is told.

    Args:
        router_id: of Hello.
        grace_s: how long the requests outlive the stream.
        keep_s: see `Outbox`.
        on_lost: the router did not come back.
    """

    def __init__(
        self, router_id: str, grace_s: float, keep_s: float, on_lost: Callable[[RouterSession], None]
    ) -> None:
        self.router_id = router_id
        self.outbox = Outbox(keep_s)
        self._grace_s = grace_s
        self._on_lost = on_lost
        self._stream = 0
        self._connected = False
        self._grace: asyncio.TimerHandle | None = None

    @property
    def connected(self) -> bool:
        """Whether a stream is open."""
        return self._connected

    def open_stream(self) -> int:
        """A new stream becomes the current one. Returns its number."""
        self.stop_grace()
        self._stream += 1
        self._connected = True
        self.outbox.replay()
        return self._stream

    def close_stream(self, stream: int) -> None:
        """A stream has ended, or is silent. No effect where a newer one came."""
        if stream != self._stream or not self._connected:
            return
        self._connected = False
        self.outbox.wake()
        self._grace = asyncio.get_running_loop().call_later(self._grace_s, self._on_lost, self)

    def stop_grace(self) -> None:
        """The session goes on, or nobody waits for its router any more."""
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    async def events(
        self, stream: int, heartbeat_s: float, steps: Callable[[], int]
    ) -> AsyncIterator[decode_pb2.DecodeEvents]:
        """One message whenever there is news, and heartbeats, while `stream` is the current one."""
        while True:
            await self.outbox.wait(heartbeat_s)
            if stream != self._stream or not self._connected:
                return
            yield self.outbox.take(steps())
