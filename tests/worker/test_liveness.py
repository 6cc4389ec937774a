from __future__ import annotations

import asyncio
import time

from tests.support.workers import eventually
from worker.liveness import SilenceTimer


async def test_tells_once_when_nothing_is_heard() -> None:
    told: list[float] = []
    began = time.monotonic()
    SilenceTimer(0.2, lambda: told.append(time.monotonic()))
    await eventually(lambda: told)
    assert told[0] - began >= 0.2
    await asyncio.sleep(0.3)
    assert len(told) == 1


async def test_hears_and_stops() -> None:
    told: list[int] = []
    timer = SilenceTimer(0.4, lambda: told.append(1))
    for _ in range(10):
        await asyncio.sleep(0.08)
        timer.heard()
    assert not told
    timer.stop()
    await asyncio.sleep(0.6)
    assert not told


async def test_the_own_process_standing_still_is_not_the_peer_s_silence() -> None:
    told: list[int] = []
    timer = SilenceTimer(0.4, lambda: told.append(1))
    # What the peer sent meanwhile is only read now.
    time.sleep(1.0)  # noqa: ASYNC251 - the event loop is to stand still
    await asyncio.sleep(0.01)
    assert not told
    timer.heard()
    timer.stop()
