from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis

from cluster.embedded_redis import EmbeddedRedis
from cluster.processes import identify, is_alive
from cluster.redis_keeper import RedisKeeper
from tests.support.waiting import until


@asynccontextmanager
async def _kept(log: Path, told: list[str]) -> AsyncIterator[RedisKeeper]:
    keeper = RedisKeeper(log, silence_s=1.0, note=told.append, on_change=lambda: told.append("changed"))
    await keeper.start()
    task = asyncio.create_task(keeper.supervise())
    try:
        yield keeper
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await keeper.stop()


def _server(keeper: RedisKeeper) -> EmbeddedRedis:
    assert keeper.server is not None
    return keeper.server


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGKILL, "the process ended"), (signal.SIGSTOP, "no answer for 1 s")]
)
async def test_a_server_that_dies_or_hangs_comes_back_on_its_port(
    tmp_path: Path, number: signal.Signals, reason: str
) -> None:
    told: list[str] = []
    async with _kept(tmp_path / "redis.log", told) as keeper:
        first = _server(keeper)
        process = identify(first.pid)
        assert process is not None
        os.kill(first.pid, number)
        await until(lambda: "changed" in told)
        assert told == [f"redis: {reason}; restarting", "redis serves again", "changed"]
        second = _server(keeper)
        assert second.url == first.url
        assert second.pid != first.pid
        assert not is_alive(process)
        with Redis.from_url(second.url) as client:
            assert client.ping()
    assert not second.running


async def test_a_server_that_answers_is_left_alone(tmp_path: Path) -> None:
    told: list[str] = []
    async with _kept(tmp_path / "redis.log", told) as keeper:
        server = _server(keeper)
        # Longer than the bound: each answer must count.
        await asyncio.sleep(2.5)
        assert _server(keeper) is server
    assert told == []


async def test_a_log_that_cannot_be_written_holds_the_restart_up_only_so_long(tmp_path: Path) -> None:
    told: list[str] = []
    folder = tmp_path / "logs"
    async with _kept(folder / "redis.log", told) as keeper:
        first = _server(keeper)
        folder.rename(tmp_path / "away")
        folder.touch()
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: told == ["redis: the process ended; restarting"])
        folder.unlink()
        await until(lambda: "changed" in told)
        assert _server(keeper).pid != first.pid
