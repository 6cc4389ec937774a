from __future__ import annotations

import asyncio
import time

from cluster.silence import Silence


async def test_silence_is_counted_until_something_is_heard() -> None:
    silence = Silence(0.4)
    reading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    while not silence.too_long:
        await silence.wait(reading)
    silence.heard()
    assert not silence.too_long


async def test_time_in_which_we_slept_ourselves_is_not_the_others_silence() -> None:
    silence = Silence(1.0)
    reading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    # The loop stands still for longer than the bound, as in a stopped process.
    asyncio.get_running_loop().call_later(0.05, time.sleep, 2.0)
    await silence.wait(reading)
    assert not silence.too_long
