from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator

import pytest
import torch

from kv_transfer.quarantine import Quarantine
from kv_transfer.reader import KvReader, KvReads
from kv_transfer.transports.base import PullState, TransportConfig
from kv_transfer.transports.in_process import InProcessPull, InProcessTransport
from kv_transfer.types import PeerLostError, TransferError, TransferTimeoutError
from tests.support.pools import BLOCK_BYTES, empty_pool, filled_pool, pattern, region_of
from tests.support.waiting import until

CHUNK = 4


class Bench:
    """A reader over the in-process transport, and peers whose reads the test holds, fails or blocks.

    `held`, `failing` and `blocked` name local blocks: a read that covers one of them stays pending, fails,
    or blocks its thread until the block is taken out again.
    """

    def __init__(self, read_timeout_s: float = 60, alarm_s: float = 60) -> None:
        self.pool = empty_pool()
        self.transport = InProcessTransport(TransportConfig("reader", 1))
        self.transport.register(region_of(self.pool))
        self.transport.gate = self._gate
        self.held: set[int] = set()
        self.failing: set[int] = set()
        self.blocked: set[int] = set()
        self.unblock = threading.Event()
        self.posted: list[tuple[int, ...]] = []
        self.settled: list[int] = []
        self.quarantine = Quarantine(alarm_s=alarm_s, clock=time.monotonic)
        self.reader = KvReader(
            self.transport,
            read_timeout_s=read_timeout_s,
            chunk_blocks=CHUNK,
            quarantine=self.quarantine,
            on_settled=self.settled.extend,
        )
        self.peers: list[InProcessTransport] = []

    def _gate(self, pull: InProcessPull) -> PullState:
        blocks = set(pull.local_blocks)
        if pull.local_blocks not in self.posted:
            self.posted.append(pull.local_blocks)
        if blocks & self.blocked:
            assert self.unblock.wait(60)
        if blocks & self.failing:
            return PullState.FAILED
        return PullState.PENDING if blocks & self.held else PullState.DONE

    async def open(self) -> KvReads:
        self.peers.append(InProcessTransport(TransportConfig("peer", len(self.peers))))
        self.peers[-1].register(region_of(filled_pool()))
        return self.reader.open(await self.reader.connect(self.peers[-1].export()))

    def assert_read(self, local: list[int], remote: list[int]) -> None:
        for ours, theirs in zip(local, remote, strict=True):
            assert torch.equal(self.pool[ours], pattern(theirs))

    async def close(self) -> None:
        self.unblock.set()
        await self.reader.close()
        for transport in (self.transport, *self.peers):
            transport.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.close()


@pytest.fixture
async def hasty() -> AsyncIterator[Bench]:
    bench = Bench(read_timeout_s=0.05, alarm_s=0.1)
    yield bench
    await bench.close()


async def test_ranges_are_read_in_chunks_and_added_up(bench: Bench) -> None:
    reads = await bench.open()
    first, second = list(range(10)), [20, 21, 22]
    before = time.time_ns()
    reads.start(first, [block + 30 for block in first], num_tokens=160)
    reads.start(second, [0, 1, 2], num_tokens=208)
    totals = await reads.wait()
    bench.assert_read(first + second, [block + 30 for block in first] + [0, 1, 2])
    assert sorted(bench.posted) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9), (20, 21, 22)]
    assert totals.num_bytes == 13 * BLOCK_BYTES
    assert totals.busy_s > 0
    assert sorted((span.num_tokens, span.num_bytes) for span in totals.spans) == [
        (160, 10 * BLOCK_BYTES),
        (208, 3 * BLOCK_BYTES),
    ]
    for span in totals.spans:
        assert before <= span.start_unix_ns <= span.end_unix_ns <= time.time_ns()
    assert reads.unsettled == frozenset()
    assert reads.give_up() == frozenset()


async def test_nothing_to_read_is_read_at_once(bench: Bench) -> None:
    reads = await bench.open()
    reads.start([], [], num_tokens=16)
    totals = await reads.wait()
    assert (totals.num_bytes, totals.busy_s, totals.spans) == (0, 0.0, ())


async def test_uneven_lists_are_refused(bench: Bench) -> None:
    reads = await bench.open()
    with pytest.raises(ValueError, match="2 local blocks, 1 remote blocks"):
        reads.start([1, 2], [1], num_tokens=32)


async def test_waiting_covers_reads_started_meanwhile(bench: Bench) -> None:
    reads = await bench.open()
    bench.held = {1}
    reads.start([1], [1], num_tokens=16)
    waiting = asyncio.create_task(reads.wait())
    await until(lambda: (1,) in bench.posted)
    bench.held = {2}
    reads.start([2], [2], num_tokens=32)
    await until(lambda: reads.unsettled == {2})
    assert not waiting.done()
    bench.held = set()
    assert (await waiting).num_bytes == 2 * BLOCK_BYTES


async def test_unsettled_blocks_are_known_at_every_moment(bench: Bench) -> None:
    reads = await bench.open()
    bench.held = {5}
    reads.start([1, 2], [1, 2], num_tokens=32)
    reads.start([5, 6], [5, 6], num_tokens=64)
    await until(lambda: len(bench.posted) == 2 and reads.unsettled == {5, 6})
    bench.held = set()
    await reads.wait()
    assert reads.unsettled == frozenset()


async def test_the_event_loop_runs_on_while_a_read_is_posted(bench: Bench) -> None:
    reads = await bench.open()
    bench.blocked = {1}
    reads.start([1], [1], num_tokens=16)
    await until(lambda: (1,) in bench.posted)
    for _ in range(5):
        await asyncio.sleep(0)
    assert reads.unsettled == {1}
    bench.unblock.set()
    await reads.wait()
    bench.assert_read([1], [1])


async def test_a_failed_read_fails_the_handover(bench: Bench) -> None:
    reads = await bench.open()
    bench.failing = {2}
    failed = asyncio.create_task(reads.failed())
    reads.start([1, 2], [1, 2], num_tokens=32)
    with pytest.raises(TransferError, match="failed") as caught:
        await reads.wait()
    assert await failed is caught.value
    reads.start([3], [3], num_tokens=48)
    assert reads.give_up() == frozenset()
    assert bench.posted == [(1, 2)]
    assert len(bench.quarantine) == 0


async def test_a_lost_peer_is_told_apart(bench: Bench) -> None:
    reads = await bench.open()
    bench.peers[0].close()
    reads.start([1], [1], num_tokens=16)
    with pytest.raises(PeerLostError, match="closed its pool"):
        await reads.wait()
    assert reads.give_up() == frozenset()


async def test_a_peer_that_names_blocks_it_does_not_have_fails_the_handover(bench: Bench) -> None:
    reads = await bench.open()
    reads.start([1], [4_000_000_000], num_tokens=16)
    with pytest.raises(TransferError, match="could not be posted: remote blocks 4000000000"):
        await reads.wait()


async def test_a_disconnected_peer_is_lost(bench: Bench) -> None:
    reads = await bench.open()
    peer = await bench.reader.connect(bench.peers[0].export())
    await bench.reader.disconnect(peer)
    reads.start([1], [1], num_tokens=16)
    with pytest.raises(PeerLostError, match="not connected"):
        await reads.wait()


async def test_a_read_that_does_not_settle_times_out_into_quarantine(hasty: Bench) -> None:
    reads = await hasty.open()
    hasty.held = {2}
    reads.start([1, 2], [1, 2], num_tokens=32)
    with pytest.raises(TransferTimeoutError, match=r"2 blocks .* has not settled in 0.05 s"):
        await reads.wait()
    assert reads.give_up() == {1, 2}
    assert reads.give_up() == frozenset()
    assert hasty.quarantine.blocks == {1, 2}
    assert hasty.settled == []
    hasty.held = set()
    await until(lambda: not len(hasty.quarantine))
    # Long after its time-out the read has written its blocks: had they been freed, they would be another's.
    hasty.assert_read([1, 2], [1, 2])
    assert sorted(hasty.settled) == [1, 2]
    hasty.quarantine.check_invariants()


async def test_a_post_that_hangs_times_out_into_quarantine(hasty: Bench) -> None:
    reads = await hasty.open()
    other = await hasty.open()
    hasty.blocked = {1}
    reads.start([1], [1], num_tokens=16)
    await until(lambda: (1,) in hasty.posted)
    # Queued behind it in the thread, so never posted: nothing to quarantine.
    other.start([2], [2], num_tokens=16)
    for handover in (reads, other):
        with pytest.raises(TransferTimeoutError):
            await handover.wait()
    assert other.give_up() == frozenset()
    assert reads.give_up() == {1}
    hasty.unblock.set()
    await until(lambda: hasty.settled == [1])
    assert (2,) not in hasty.posted
    assert not hasty.pool[2].any()


async def test_cancelling_the_wait_cancels_no_read(bench: Bench) -> None:
    reads = await bench.open()
    bench.held = {1}
    reads.start([1], [1], num_tokens=16)
    waiting = asyncio.create_task(reads.wait())
    await until(lambda: (1,) in bench.posted)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert reads.unsettled == {1}
    bench.held = set()
    assert (await reads.wait()).num_bytes == BLOCK_BYTES


async def test_giving_up_parks_what_is_in_flight_and_starts_nothing_more(bench: Bench) -> None:
    reads = await bench.open()
    bench.held = set(range(64))
    local = list(range(20))
    reads.start(local, local, num_tokens=320)
    await until(lambda: bench.posted == [(0, 1, 2, 3)])
    assert reads.give_up() == {0, 1, 2, 3}
    reads.start([40], [40], num_tokens=336)
    with pytest.raises(TransferError, match="given up"):
        await reads.wait()
    assert "given up" in str(await reads.failed())
    assert bench.settled == []
    bench.held = set()
    await until(lambda: sorted(bench.settled) == [0, 1, 2, 3])
    assert bench.posted == [(0, 1, 2, 3)]
    assert bench.pool[:4].any(1).all()
    assert not bench.pool[4:].any()


async def test_giving_up_takes_back_what_was_never_posted(bench: Bench) -> None:
    reads = await bench.open()
    bench.blocked = {1}
    reads.start([1], [1], num_tokens=16)
    reads.start([2], [2], num_tokens=32)
    await until(lambda: (1,) in bench.posted and reads.unsettled == {1, 2})
    assert reads.give_up() == {1}
    bench.unblock.set()
    await until(lambda: bench.settled == [1])
    assert bench.posted == [(1,)]


async def test_giving_up_makes_room_for_the_next_handover_from_the_same_peer(bench: Bench) -> None:
    reads = await bench.open()
    peer = await bench.reader.connect(bench.peers[0].export())
    bench.held = {1, 2}
    reads.start([1], [1], num_tokens=16)
    reads.start([2], [2], num_tokens=32)
    await until(lambda: len(bench.posted) == 2)
    following = bench.reader.open(peer)
    following.start([3], [3], num_tokens=16)
    assert reads.give_up() == {1, 2}
    assert (await following.wait()).num_bytes == BLOCK_BYTES
    assert bench.quarantine.blocks == {1, 2}
    bench.held = set()
    await until(lambda: sorted(bench.settled) == [1, 2])


async def test_giving_up_before_anything_ran(bench: Bench) -> None:
    reads = await bench.open()
    reads.start([1, 2], [1, 2], num_tokens=32)
    assert reads.give_up() == frozenset()
    await asyncio.sleep(0)
    assert bench.posted == []


async def test_settled_blocks_are_reported_after_the_caller_could_quarantine_them(bench: Bench) -> None:
    reads = await bench.open()
    bench.held = {1}
    reads.start([1], [1], num_tokens=16)
    await until(lambda: (1,) in bench.posted)
    assert reads.give_up() == {1}
    bench.held = set()
    assert bench.settled == []
    await until(lambda: bench.settled == [1])


async def test_a_hanging_peer_holds_up_no_other(bench: Bench) -> None:
    hanging, well = await bench.open(), await bench.open()
    bench.held = set(range(32))
    for block in range(8):
        hanging.start([block], [block], num_tokens=16)
    await until(lambda: len(bench.posted) == 2)
    well.start([40], [40], num_tokens=16)
    assert (await well.wait()).num_bytes == BLOCK_BYTES
    # Two at a time from one peer.
    assert len(bench.posted) == 3
    hanging.give_up()
    bench.held = set()
    await until(lambda: not len(bench.quarantine))


async def test_a_long_quarantine_raises_the_alarm_once(
    hasty: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    reads = await hasty.open()
    hasty.held = {1}
    reads.start([1], [1], num_tokens=16)
    with pytest.raises(TransferTimeoutError):
        await reads.wait()
    reads.give_up()
    with caplog.at_level(logging.ERROR, "kv_transfer.reader"):
        await until(lambda: hasty.quarantine.alarmed and bool(caplog.messages))
        await asyncio.sleep(0.2)
    assert caplog.messages == ["a read does not settle"]
    hasty.held = set()
    await until(lambda: hasty.settled == [1])
    assert not hasty.quarantine.alarmed


async def test_closing_the_reader_leaves_quarantined_blocks_where_they_are() -> None:
    bench = Bench()
    reads = await bench.open()
    bench.held = {1}
    reads.start([1], [1], num_tokens=16)
    await until(lambda: (1,) in bench.posted)
    reads.give_up()
    await bench.reader.close()
    assert bench.quarantine.blocks == {1}
    assert bench.settled == []
    await bench.close()


@pytest.mark.parametrize("wrong", [{"read_timeout_s": 0.0}, {"chunk_blocks": 0}])
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    quarantine = Quarantine(alarm_s=1, clock=time.monotonic)
    settings = {"read_timeout_s": 1.0, "chunk_blocks": 1, **wrong}
    with pytest.raises(ValueError, match="positive"):
        KvReader(
            InProcessTransport(TransportConfig("w", 1)),
            read_timeout_s=settings["read_timeout_s"],
            chunk_blocks=int(settings["chunk_blocks"]),
            quarantine=quarantine,
            on_settled=lambda _: None,
        )
