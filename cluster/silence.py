"""How long a process has said nothing."""

from __future__ import annotations

import asyncio
import time
from typing import Any


class Silence:
    """How long nothing was heard, in time during which this process itself was awake.

    A supervisor that was stopped or starved must not take its own silence for another's.
    """

    _SLICE_S = 0.25

    def __init__(self, bound_s: float) -> None:
        self._bound_s = bound_s
        self._silent_s = 0.0

    @property
    def too_long(self) -> bool:
        """Whether the bound is passed."""
        return self._silent_s > self._bound_s

    def heard(self) -> None:
        """The other said something."""
        self._silent_s = 0.0

    async def wait(self, reading: asyncio.Future[Any]) -> None:
        """Waits a moment for `reading`."""
        before = time.monotonic()
        await asyncio.wait({reading}, timeout=self._SLICE_S)
        self._count(before, self._SLICE_S)

    async def sleep(self, seconds: float) -> None:
        """Waits for nothing."""
        before = time.monotonic()
        await asyncio.sleep(seconds)
        self._count(before, seconds)

    def _count(self, before: float, planned_s: float) -> None:
        self._silent_s += min(time.monotonic() - before, 2 * planned_s)
