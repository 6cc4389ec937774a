"""Noticing that a peer has fallen silent, on streams where both sides send heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_TICKS = 4


class SilenceTimer:
    """Calls `on_silent` once when nothing was heard for `timeout_s`.

    Time is counted in ticks of the own event loop: when this process itself was stopped or starved, that
    is one late tick and not the peer's silence, and what the peer sent meanwhile is read first.
    """

    def __init__(self, timeout_s: float, on_silent: Callable[[], None]) -> None:
        self._interval_s = timeout_s / _TICKS
        self._on_silent = on_silent
        self._ticks = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(self._interval_s, self._tick)

    def heard(self) -> None:
        """The peer lives."""
        self._ticks = 0

    def stop(self) -> None:
        """Nobody waits for the peer any more."""
        self._handle.cancel()

    def _tick(self) -> None:
        self._ticks += 1
        if self._ticks > _TICKS:
            self._on_silent()
            return
        self._handle = self._loop.call_later(self._interval_s, self._tick)
