"""Keeps the embedded Redis running: asked now and then, started anew when it dies or hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from cluster import embedded_redis
from cluster.backoff import Backoff
from cluster.embedded_redis import EmbeddedRedis, EmbeddedRedisError
from cluster.silence import Silence
from telemetry.logs import fields

logger = logging.getLogger(__name__)

_PAUSE_S = 0.5


class RedisKeeper:
    """One embedded server at a time, always on the same port.

    Args:
        log_path: file for the server's output.
        silence_s: how long it may leave questions unanswered before it counts as hung.
        note: told in words what happens to it.
        on_change: called after `server` is another one.

    Attributes:
        server: the latest one; None before `start`.
    """

    def __init__(
        self,
        log_path: Path,
        *,
        silence_s: float,
        note: Callable[[str], None],
        on_change: Callable[[], None],
    ) -> None:
        self.server: EmbeddedRedis | None = None
        self._log_path = log_path
        self._silence_s = silence_s
        self._note = note
        self._on_change = on_change

    async def start(self) -> str:
        """First start. Returns the URL, which stays. Raises EmbeddedRedisError, OSError."""
        self.server = await asyncio.to_thread(embedded_redis.start, self._log_path)
        return self.server.url

    async def supervise(self) -> None:
        """Watches and restarts, for ever. After `start`."""
        if self.server is None:
            raise AssertionError("supervise before start")
        while True:
            reason = await self._watch(self.server)
            self._note(f"redis: {reason}; restarting")
            # One that hangs still holds the port.
            await asyncio.to_thread(self.server.stop)
            # On the same port: workers and routers find it by themselves and publish anew.
            self.server = await self._start_again(self.server.port)
            self._note("redis serves again")
            self._on_change()

    async def stop(self) -> None:
        """Ends the server, if there is one."""
        if self.server is not None:
            await asyncio.to_thread(self.server.stop)

    async def _start_again(self, port: int) -> EmbeddedRedis:
        backoff = Backoff()
        while True:
            try:
                return await asyncio.to_thread(embedded_redis.start, self._log_path, port)
            except (EmbeddedRedisError, OSError) as error:
                logger.warning("redis does not start", extra=fields(reason=str(error)))
                await asyncio.sleep(backoff.failed())

    async def _watch(self, server: EmbeddedRedis) -> str:
        """Returns the reason once this server must no longer be used."""
        silence = Silence(self._silence_s)
        while server.running:
            asking = asyncio.ensure_future(asyncio.to_thread(server.answers))
            while not asking.done():
                await silence.wait(asking)
            if asking.result():
                silence.heard()
            elif silence.too_long:
                return f"no answer for {self._silence_s:g} s"
            await silence.sleep(_PAUSE_S)
        return "the process ended"
