from __future__ import annotations

import asyncio
from typing import Never

import pytest

from cluster.waiting import unless_fails, unless_set


async def _for_ever(ended: list[str]) -> Never:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("cancelled")
    raise AssertionError


async def _fail(message: str) -> Never:
    await asyncio.sleep(0)
    raise ValueError(message)


async def _answer() -> int:
    await asyncio.sleep(0)
    return 7


async def test_an_event_cuts_work_short() -> None:
    ended: list[str] = []
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, event.set)
    await unless_set(event, _for_ever(ended))
    assert ended == ["cancelled"]
    with pytest.raises(ValueError, match="own error"):
        await unless_set(asyncio.Event(), _fail("own error"))


async def test_a_failing_watch_cuts_work_short_and_says_why() -> None:
    ended: list[str] = []
    with pytest.raises(ValueError, match="the watch"):
        await unless_fails(_fail("the watch"), _for_ever(ended))
    assert ended == ["cancelled"]


async def test_work_that_ends_first_ends_the_watch() -> None:
    ended: list[str] = []
    assert await unless_fails(_for_ever(ended), _answer()) == 7
    with pytest.raises(ValueError, match="own error"):
        await unless_fails(_for_ever(ended), _fail("own error"))
    assert ended == ["cancelled", "cancelled"]
