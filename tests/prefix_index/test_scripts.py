"""The atomic operations one by one, and against a model."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from redis.asyncio import Redis

from cluster import embedded_redis
from prefix_index.connection import IndexConnection
from prefix_index.index import RedisPrefixIndex
from prefix_index.scripts import LEAVE, MATCH, PUBLISH, REGISTER, SWEEP
from tests.prefix_index.support import keys_left, names

LEASE_MS = 600_000


@pytest_asyncio.fixture
async def connection(url: str, namespace: str) -> AsyncIterator[IndexConnection]:
    connection = IndexConnection(url, namespace, timeout_s=30.0)
    yield connection
    await connection.close()


async def _register(connection: IndexConnection, worker_id: str, epoch: str, incarnation: int = 1) -> bytes:
    reply = await connection.run(REGISTER, worker_id, epoch, f"{incarnation:020d}", LEASE_MS)
    status: bytes = reply[0]
    return status


async def _publish(
    connection: IndexConnection,
    worker_id: str,
    epoch: str,
    stored: list[bytes],
    evicted: list[bytes] | None = None,
    lease_ms: int = LEASE_MS,
) -> bytes:
    joined = b"".join(stored), b"".join(evicted or [])
    status: bytes = (await connection.run(PUBLISH, worker_id, epoch, lease_ms, *joined))[0]
    return status


async def _slot(client: Redis, connection: IndexConnection, worker_id: str) -> int:
    entry = await client.hget(connection.keys.workers, worker_id)
    assert isinstance(entry, bytes)
    return int(entry.split(b":")[0])


async def test_a_slot_is_not_given_out_before_it_is_swept(connection: IndexConnection, url: str) -> None:
    async with Redis.from_url(url, protocol=2) as client:
        for number in range(10):  # slot 8 begins the second byte
            await _register(connection, f"worker-{number}", "a")
            await _publish(connection, f"worker-{number}", "a", names(2000))
        assert [await _slot(client, connection, f"worker-{number}") for number in range(10)] == list(
            range(10)
        )
        for number in (3, 8):
            assert await connection.run(LEAVE, f"worker-{number}", "a") == 1

        # One batch is bounded: it does not finish 2000 blocks, and the slots stay taken.
        assert await connection.run(SWEEP, 100) == 1
        await _register(connection, "new", "b")
        assert await _slot(client, connection, "new") == 10
        while await connection.run(SWEEP, 100):
            pass
        bitmaps = set((await client.hgetall(connection.keys.blocks)).values())
        assert bitmaps == {bytes([0b11110111, 0b00000010])}
        for worker_id, slot in (("first again", 3), ("second again", 8), ("third", 11)):
            await _register(connection, worker_id, "c")
            assert await _slot(client, connection, worker_id) == slot


async def test_a_slot_that_becomes_dirty_during_a_pass_waits_for_the_next(
    connection: IndexConnection, url: str
) -> None:
    for worker_id in ("one", "two", "three"):
        await _register(connection, worker_id, "a")
        await _publish(connection, worker_id, "a", names(2000))
    await connection.run(LEAVE, "one", "a")
    assert await connection.run(SWEEP, 100) == 1
    await connection.run(LEAVE, "two", "a")
    while await connection.run(SWEEP, 100):
        pass
    async with Redis.from_url(url, protocol=2) as client:
        assert set((await client.hgetall(connection.keys.blocks)).values()) == {b"\x04"}


async def test_commands_of_a_former_epoch_change_nothing(connection: IndexConnection, url: str) -> None:
    await _register(connection, "worker", "a")
    await _register(connection, "worker", "b")
    assert await _publish(connection, "worker", "a", names(3)) == b"lost"
    await connection.run(LEAVE, "worker", "a")
    assert await _publish(connection, "worker", "b", []) == b"ok"
    async with Redis.from_url(url) as client:
        assert not await client.exists(connection.keys.blocks)


@pytest.mark.parametrize("order", [1, -1])
async def test_many_workers_drop_out_one_after_the_other(connection: IndexConnection, order: int) -> None:
    # 17 workers: bitmaps of three bytes.
    chain = names(100)
    holdings = {f"worker-{number}": 3 * number for number in range(17)[::order]}
    for worker_id, held in holdings.items():
        await _register(connection, worker_id, "a")
        await _publish(connection, worker_id, "a", chain[:held])
    reply = await connection.run(MATCH, b"".join(chain))
    assert dict(zip((worker_id.decode() for worker_id in reply[1::4]), reply[2::4], strict=True)) == holdings


@pytest.mark.parametrize("incarnation", [2**60, 2**60 - 1, 5])
async def test_an_older_incarnation_does_not_take_over(connection: IndexConnection, incarnation: int) -> None:
    # One apart: numbers that a double cannot tell apart.
    await _register(connection, "worker", "a", 2**60 + 1)
    assert await _register(connection, "worker", "b", incarnation) == b"fenced"
    assert await _publish(connection, "worker", "a", []) == b"ok"


async def test_an_ended_lease_is_not_revived(connection: IndexConnection) -> None:
    await _register(connection, "worker", "a")
    assert await _publish(connection, "worker", "a", names(3), lease_ms=1) == b"ok"
    await asyncio.sleep(0.01)
    # Nobody has noticed: the registration still stands there.
    assert await _publish(connection, "worker", "a", []) == b"lost"
    assert (await connection.run(MATCH, b"".join(names(3))))[1:] == []


class IndexMachine(RuleBasedStateMachine):
    """Workers register, publish, evict, leave, expire, sweep in any order; lookups equal a plain model."""

    CHAINS = (names(6, "a"), names(6, "b"))
    # The sequence of names is a parent for both: chains that share a beginning, as prompts do.
    BLOCKS = (*names(3, "shared"), *CHAINS[0], *CHAINS[1])
    WORKERS = tuple(f"worker-{number}" for number in range(4))

    worker_ids = st.sampled_from(WORKERS)
    blocks = st.lists(st.sampled_from(BLOCKS), max_size=8, unique=True)

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kvrelay-test-"))
        self.server = embedded_redis.start(self.folder / "redis.log")
        self.runner = asyncio.Runner()
        self.connection = self.runner.run(self._open())
        self.index = self.runner.run(self._open_index())
        self.epochs = 0
        # worker -> (epoch, incarnation, blocks)
        self.live: dict[str, tuple[str, int, set[bytes]]] = {}
        self.ended: list[tuple[str, str]] = []
        self.bookings: dict[tuple[str, str], int] = {}

    async def _open(self) -> IndexConnection:
        return IndexConnection(self.server.url, "default", timeout_s=30.0)

    async def _open_index(self) -> RedisPrefixIndex:
        return RedisPrefixIndex(self.server.url)

    def _end(self, worker_id: str) -> None:
        self.ended.append((worker_id, self.live.pop(worker_id)[0]))

    @rule(worker_id=worker_ids, incarnation=st.integers(1, 3))
    def register(self, worker_id: str, incarnation: int) -> None:
        self.epochs += 1
        epoch = f"{self.epochs:x}"
        status = self.runner.run(_register(self.connection, worker_id, epoch, incarnation))
        if worker_id in self.live and self.live[worker_id][1] > incarnation:
            assert status == b"fenced"
            return
        assert status == b"ok"
        if worker_id in self.live:
            self._end(worker_id)
        self.live[worker_id] = (epoch, incarnation, set())

    @precondition(lambda self: self.live)
    @rule(data=st.data(), stored=blocks, evicted=blocks)
    def publish(self, data: st.DataObject, stored: list[bytes], evicted: list[bytes]) -> None:
        worker_id = data.draw(st.sampled_from(sorted(self.live)))
        epoch, _, held = self.live[worker_id]
        assert self.runner.run(_publish(self.connection, worker_id, epoch, stored, evicted)) == b"ok"
        held.difference_update(evicted)
        held.update(stored)

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), stored=blocks)
    def publish_late(self, data: st.DataObject, stored: list[bytes]) -> None:
        worker_id, epoch = data.draw(st.sampled_from(self.ended))
        assert self.runner.run(_publish(self.connection, worker_id, epoch, stored)) == b"lost"
        self.runner.run(self.connection.run(LEAVE, worker_id, epoch))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        worker_id = data.draw(st.sampled_from(sorted(self.live)))
        self.runner.run(self.connection.run(LEAVE, worker_id, self.live[worker_id][0]))
        self._end(worker_id)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def lease_ends(self, data: st.DataObject) -> None:
        worker_id = data.draw(st.sampled_from(sorted(self.live)))
        self.runner.run(_publish(self.connection, worker_id, self.live[worker_id][0], [], lease_ms=1))
        self._end(worker_id)
        time.sleep(0.002)  # the lease is 1 ms of the same machine's clock

    @rule(batch=st.sampled_from((1, 4, 100)))
    def sweep(self, batch: int) -> None:
        self.runner.run(self.connection.run(SWEEP, batch))

    @rule(worker_id=worker_ids, request_id=st.sampled_from("xyz"), tokens=st.integers(0, 2**40))
    def book(self, worker_id: str, request_id: str, tokens: int) -> None:
        self.runner.run(self.index.book(worker_id, request_id, tokens, 600.0))
        self.bookings[worker_id, request_id] = tokens

    @rule(worker_id=worker_ids, request_id=st.sampled_from("xyz"))
    def unbook(self, worker_id: str, request_id: str) -> None:
        self.runner.run(self.index.unbook(worker_id, request_id))
        self.bookings.pop((worker_id, request_id), None)

    @invariant()
    def lookups_equal_the_model(self) -> None:
        for chain in self.CHAINS:
            chain = [*self.BLOCKS[:3], *chain]
            match = self.runner.run(self.index.match(chain))
            expected = {}
            for worker_id, (_, _, held) in self.live.items():
                missing = [position for position, name in enumerate(chain) if name not in held]
                expected[worker_id] = missing[0] if missing else len(chain)
            assert match.leading_blocks == expected
            for worker_id in self.live:
                tokens = [value for (booked, _), value in self.bookings.items() if booked == worker_id]
                assert match.booked_tokens[worker_id] == sum(tokens)
                assert match.booked_requests[worker_id] == len(tokens)

    def teardown(self) -> None:
        try:
            self.runner.run(self._finish())
        finally:
            self.runner.close()
            self.server.stop()
            shutil.rmtree(self.folder)

    async def _finish(self) -> None:
        """With the last worker and the last booking the last key goes."""
        for worker_id, (epoch, _, _) in self.live.items():
            await self.connection.run(LEAVE, worker_id, epoch)
        for worker_id, request_id in self.bookings:
            await self.index.unbook(worker_id, request_id)
        while await self.connection.run(SWEEP, 100):
            pass
        await self.connection.close()
        await self.index.close()
        assert await keys_left(self.server.url, "default") == []


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
