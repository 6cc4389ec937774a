"""Ending tasks without losing their errors."""

from __future__ import annotations

import asyncio
import logging

logger = logging.getLogger(__name__)


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancels a task and waits for it. An error of its own is logged; none is raised."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a task failed", exc_info=error)
