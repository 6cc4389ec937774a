from __future__ import annotations

import asyncio
import threading
import uuid

import pytest
from redis.asyncio import Redis

from prefix_index.connection import IndexConnection
from prefix_index.index import RedisPrefixIndex
from prefix_index.publisher import RedisIndexPublisher
from tests.prefix_index.support import Worker, keys_left, names, until


async def leading(index: RedisPrefixIndex, chain: list[bytes], worker_id: str = "worker") -> int | None:
    return (await index.match(chain)).leading_blocks.get(worker_id)


async def becomes(
    index: RedisPrefixIndex, chain: list[bytes], expected: int | None, worker_id: str = "worker"
) -> None:
    async def condition() -> bool:
        return await leading(index, chain, worker_id) == expected

    await until(condition)


async def test_changes_arrive(index: RedisPrefixIndex, url: str, namespace: str) -> None:
    chain = names(3000)  # more than one batch
    worker = Worker(url, namespace, "worker")
    worker.blocks = dict.fromkeys(chain[:10])
    await worker.start()
    assert await leading(index, chain) == 10
    worker.store(chain[10:])
    await becomes(index, chain, 3000)
    worker.evict(chain[2000:])
    await becomes(index, chain, 2000)
    worker.evict(chain[:1])
    worker.store(chain[:1])
    worker.evict(chain[5:])
    await becomes(index, chain, 5)
    await worker.close()


async def test_a_block_in_both_lists_was_evicted_first(
    index: RedisPrefixIndex, url: str, namespace: str
) -> None:
    chain = names(2)
    worker = Worker(url, namespace, "worker")
    await worker.start()
    worker.publisher.publish(stored=chain, evicted=chain)
    await becomes(index, chain, 2)
    await worker.close()


async def test_evicted_blocks_take_no_room(url: str, namespace: str) -> None:
    worker = Worker(url, namespace, "worker")
    await worker.start()
    worker.store(names(100))
    blocks = f"{{kvrelay:{namespace}}}:blocks"

    async def published() -> bool:
        return blocks in await keys_left(url, namespace)

    async def gone() -> bool:
        return not await published()

    await until(published)
    worker.evict(names(100))
    await until(gone)
    await worker.close()


async def test_leaving_is_seen_at_once_and_leaves_nothing(
    index: RedisPrefixIndex, url: str, namespace: str
) -> None:
    chain = names(2000)
    workers = [Worker(url, namespace, f"worker-{number}") for number in range(3)]
    for worker in workers:
        worker.blocks = dict.fromkeys(chain)
        await worker.start()
    await workers[0].close()
    assert set((await index.match(chain)).leading_blocks) == {"worker-1", "worker-2"}
    await workers[1].close()
    assert (await index.match(chain)).leading_blocks == {"worker-2": 2000}
    await workers[2].close()
    assert (await index.match(chain)).leading_blocks == {}
    assert await keys_left(url, namespace) == []


async def test_a_successor_takes_over_and_fences_its_predecessor(
    index: RedisPrefixIndex, url: str, namespace: str
) -> None:
    chain = names(10)
    old = Worker(url, namespace, "worker", incarnation=1)
    old.store(chain)
    await old.start()
    assert await leading(index, chain) == 10
    new = Worker(url, namespace, "worker", incarnation=2)
    await new.start()
    assert await leading(index, chain) == 0
    old.store(names(5, "late"))
    await until(lambda: old.snapshots == 2)  # it notices, and tries to register anew
    new.store(chain[:4])
    await becomes(index, chain, 4)
    assert await leading(index, names(5, "late")) == 0
    await old.close()
    assert await leading(index, chain) == 4
    assert (old.snapshots, new.snapshots) == (2, 1)  # the successor never lost its place
    await new.close()


async def test_a_lease_that_ended_is_taken_anew(index: RedisPrefixIndex, url: str, namespace: str) -> None:
    chain = names(10)
    worker = Worker(url, namespace, "worker")
    worker.store(chain)
    await worker.start()
    # Another epoch of the same incarnation ends this one, and leaves.
    other = Worker(url, namespace, "worker")
    await other.start()
    await other.close()
    assert await leading(index, chain) is None
    worker.store(names(1, "wakes it"))
    await becomes(index, chain, 10)
    assert worker.snapshots == 2
    await worker.close()


async def test_heartbeats_prolong_the_lease(url: str, namespace: str) -> None:
    worker = Worker(url, namespace, "worker")
    await worker.start()
    async with Redis.from_url(url, protocol=2) as client:

        async def registration() -> list[bytes]:
            value = await client.hget(f"{{kvrelay:{namespace}}}:workers", "worker")
            assert isinstance(value, bytes)
            return value.split(b":")

        slot, deadline, incarnation, epoch = await registration()

        async def prolonged() -> bool:
            return (await registration())[1] > deadline

        await until(prolonged)
        later = await registration()
    assert [later[0], *later[2:]] == [slot, incarnation, epoch]
    await worker.close()


@pytest.mark.parametrize("when", ["before the snapshot is taken", "after"])
async def test_changes_during_a_snapshot_are_merged(
    index: RedisPrefixIndex, url: str, namespace: str, when: str
) -> None:
    chain = names(4)
    asked, go_on = asyncio.Event(), asyncio.Event()
    held = dict.fromkeys(chain[:3])

    async def snapshot() -> list[bytes]:
        taken = list(held)
        asked.set()
        await go_on.wait()
        return taken if when == "after" else list(held)

    publisher = RedisIndexPublisher(url, namespace, "worker", 1, snapshot)
    publisher.publish(names(1, "before the start"), ())  # no epoch yet: the snapshot decides
    await publisher.start()
    await asked.wait()
    del held[chain[1]]
    publisher.publish((), chain[1:2])
    held[chain[3]] = None
    publisher.publish(chain[3:], ())
    go_on.set()
    await until(lambda: publisher.registered)
    assert [await leading(index, [name]) for name in chain] == [1, 0, 1, 1]
    assert await leading(index, names(1, "before the start")) == 0
    await publisher.close()


async def test_a_failing_snapshot_is_tried_again(url: str, namespace: str) -> None:
    failures: list[Exception | list[bytes]] = [RuntimeError("engine is busy"), [b"short"]]

    async def snapshot() -> list[bytes]:
        if not failures:
            return []
        failure = failures.pop()
        if isinstance(failure, Exception):
            raise failure
        return failure

    publisher = RedisIndexPublisher(url, namespace, "worker", 1, snapshot)
    await publisher.start()
    await until(lambda: publisher.registered)
    assert failures == []
    await publisher.close()


async def test_publishing_from_another_thread(index: RedisPrefixIndex, url: str, namespace: str) -> None:
    chain = names(500)
    worker = Worker(url, namespace, "worker")
    await worker.start()

    def engine() -> None:
        for name in chain:
            worker.publisher.publish((name,), ())

    thread = threading.Thread(target=engine)
    thread.start()
    await becomes(index, chain, 500)
    thread.join()
    await worker.close()
    worker.publisher.publish(chain, ())  # too late, and no error


async def test_names_of_a_wrong_length_are_refused(url: str, namespace: str) -> None:
    worker = Worker(url, namespace, "worker")
    with pytest.raises(ValueError, match="16 bytes"):
        worker.publisher.publish([b"short"], ())
    await worker.close()


async def test_a_lease_must_be_positive(url: str) -> None:
    with pytest.raises(ValueError, match="lease_s"):
        Worker(url, uuid.uuid4().hex, "worker", lease_s=0.0)


async def test_closing_before_and_twice_is_harmless(url: str, namespace: str) -> None:
    worker = Worker(url, namespace, "worker")
    await worker.close()
    other = Worker(url, namespace, "other")
    await other.start()
    await other.close()
    await other.close()
    assert await keys_left(url, namespace) == []


async def test_a_defect_is_logged_and_publishing_goes_on(
    index: RedisPrefixIndex,
    url: str,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = names(3)
    worker = Worker(url, namespace, "worker")
    worker.blocks = dict.fromkeys(chain)
    ping, failures = IndexConnection.ping, [RuntimeError("test")]

    async def fails_once(connection: IndexConnection) -> None:
        if failures:
            raise failures.pop()
        await ping(connection)

    monkeypatch.setattr(IndexConnection, "ping", fails_once)
    await worker.start()
    await becomes(index, chain, 3)
    assert "publishing to the prefix index failed" in caplog.text
    await worker.close()
