"""Work that nobody waits for, kept alive and ended with its owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_logger = logging.getLogger(__name__)


class BackgroundTasks:
    """Runs coroutines on the side: the event loop itself holds tasks only weakly."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Starts `work`; what it raises is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("background task failed", exc_info=error)

    async def close(self, grace_s: float = 1.0) -> None:
        """Gives the tasks `grace_s` to end, then cancels them."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(set(self._tasks), timeout=grace_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
