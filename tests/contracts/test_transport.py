from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from kv_transfer import registry
from kv_transfer.quarantine import Quarantine
from kv_transfer.reader import KvReader
from kv_transfer.transports.base import Pull, PullState, TransportConfig
from kv_transfer.types import LayoutMismatchError, PeerLostError, TransferError, TransferTimeoutError
from tests.support.pools import BLOCK_BYTES, NUM_BLOCKS, empty_pool, pattern, region_of
from tests.support.transport_peers import PEERS, Peer, start_peer
from tests.support.waiting import until, wait_until


class Reading:
    """A transport with a pool of its own, and the peers that a test started."""

    def __init__(self, name: str) -> None:
        self.pool = empty_pool()
        self.transport = registry.create(name, TransportConfig("reader", 1))
        self.transport.register(region_of(self.pool))
        self.peers: list[Peer] = []

    def peer(self, block_bytes: int = BLOCK_BYTES) -> Peer:
        self.peers.append(start_peer(self.transport, block_bytes))
        return self.peers[-1]

    def read(self, peer: str, local: list[int], remote: list[int]) -> Pull:
        pull = self.transport.start_pull(peer, local, remote)
        wait_until(lambda: pull.poll() is not PullState.PENDING)
        return pull

    def assert_read(self, local: list[int], remote: list[int]) -> None:
        for ours, theirs in zip(local, remote, strict=True):
            assert torch.equal(self.pool[ours], pattern(theirs)), f"block {ours} is not the peer's {theirs}"


@pytest.fixture(scope="module", params=registry.names())
def shared(request: pytest.FixtureRequest) -> Iterator[Reading]:
    reading = Reading(request.param)
    yield reading
    reading.transport.close()
    for peer in reading.peers:
        peer.kill()


@pytest.fixture(scope="module")
def healthy(shared: Reading) -> Peer:
    return shared.peer()


@pytest.fixture
def reading(shared: Reading) -> Reading:
    shared.pool.zero_()
    return shared


@pytest.fixture
def doomed(reading: Reading) -> Iterator[Callable[[], Peer]]:
    """Starts peers that the test may kill; those it does not are killed after it."""
    started: list[Peer] = []

    def start() -> Peer:
        started.append(start_peer(reading.transport))
        return started[-1]

    yield start
    for peer in started:
        peer.kill()


def test_every_transport_has_peers_to_test_with() -> None:
    assert set(PEERS) == set(registry.names())


def test_is_named_as_its_file(reading: Reading) -> None:
    assert reading.transport.name in registry.names()


def test_reads_the_blocks_named_and_touches_no_other(reading: Reading, healthy: Peer) -> None:
    peer = reading.transport.connect(healthy.exported)
    local, remote = [0, 5, 6, 63], [63, 2, 9, 0]
    pull = reading.read(peer, local, remote)
    assert pull.poll() is PullState.DONE
    assert pull.error is None
    assert pull.local_blocks == tuple(local)
    assert pull.num_bytes == len(local) * BLOCK_BYTES
    reading.assert_read(local, remote)
    others = [block for block in range(NUM_BLOCKS) if block not in local]
    assert not reading.pool[others].any()


def test_many_reads_at_once(reading: Reading, healthy: Peer) -> None:
    peer = reading.transport.connect(healthy.exported)
    pulls = [reading.transport.start_pull(peer, [block], [NUM_BLOCKS - 1 - block]) for block in range(32)]
    wait_until(lambda: all(pull.poll() is PullState.DONE for pull in pulls))
    reading.assert_read(list(range(32)), [NUM_BLOCKS - 1 - block for block in range(32)])


def test_connecting_again_gives_the_same_peer(reading: Reading, healthy: Peer) -> None:
    peer = reading.transport.connect(healthy.exported)
    assert reading.transport.connect(healthy.exported) == peer
    assert reading.read(peer, [1], [2]).poll() is PullState.DONE


def test_reads_again_after_disconnecting(reading: Reading, healthy: Peer) -> None:
    peer = reading.transport.connect(healthy.exported)
    reading.transport.disconnect(peer)
    with pytest.raises(PeerLostError, match="not connected"):
        reading.transport.start_pull(peer, [1], [2])
    peer = reading.transport.connect(healthy.exported)
    assert reading.read(peer, [1], [2]).poll() is PullState.DONE
    reading.assert_read([1], [2])


def test_disconnecting_a_stranger_is_no_error(reading: Reading) -> None:
    reading.transport.disconnect("nobody")


def test_shorter_blocks_are_read_to_the_beginning_of_ones_own(reading: Reading) -> None:
    size = BLOCK_BYTES // 4
    peer = reading.transport.connect(reading.peer(block_bytes=size).exported)
    pull = reading.read(peer, [3, 9], [2, 5])
    assert (pull.poll(), pull.num_bytes) == (PullState.DONE, 2 * size)
    for own, theirs in ((3, 2), (9, 5)):
        assert torch.equal(reading.pool[own, :size], pattern(theirs, size))
    assert int(reading.pool.count_nonzero()) == 2 * size


def test_longer_blocks_are_refused(reading: Reading) -> None:
    other = reading.peer(block_bytes=BLOCK_BYTES * 2)
    with pytest.raises(
        LayoutMismatchError, match=f"local {BLOCK_BYTES} bytes, remote {BLOCK_BYTES * 2} bytes"
    ):
        reading.transport.connect(other.exported)


@pytest.mark.parametrize("exported", [b"", b"junk", b"\xff" * 400])
def test_what_is_no_pool_is_refused(reading: Reading, exported: bytes) -> None:
    with pytest.raises(TransferError, match=r"not described|describes its pool as"):
        reading.transport.connect(exported)


@pytest.mark.parametrize(
    ("local", "remote"),
    [
        ([], []),
        ([1, 2], [1]),
        ([1, 1], [2, 3]),
        ([NUM_BLOCKS], [0]),
        ([-1], [0]),
        ([0], [NUM_BLOCKS]),
        ([0], [-1]),
    ],
)
def test_impossible_blocks_are_refused(
    reading: Reading, healthy: Peer, local: list[int], remote: list[int]
) -> None:
    peer = reading.transport.connect(healthy.exported)
    with pytest.raises(ValueError, match="block"):
        reading.transport.start_pull(peer, local, remote)
    assert not reading.pool.any()


def test_a_stranger_cannot_be_read(reading: Reading) -> None:
    with pytest.raises(PeerLostError, match="nobody"):
        reading.transport.start_pull("nobody", [1], [2])


def test_a_killed_peer_is_lost_and_others_go_on(
    reading: Reading, healthy: Peer, doomed: Callable[[], Peer]
) -> None:
    victim = doomed()
    lost = reading.transport.connect(victim.exported)
    alive = reading.transport.connect(healthy.exported)
    assert reading.read(lost, [1], [2]).poll() is PullState.DONE
    victim.kill()

    def is_lost() -> bool:
        try:
            pull = reading.read(lost, [3], [4])
        except PeerLostError:
            return True
        return pull.poll() is PullState.FAILED and isinstance(pull.error, PeerLostError)

    wait_until(is_lost)
    assert reading.read(alive, [7], [8]).poll() is PullState.DONE
    reading.assert_read([7], [8])
    reading.transport.disconnect(lost)
    with pytest.raises(PeerLostError):
        reading.transport.start_pull(lost, [1], [2])


def test_a_restarted_peer_is_another_peer(reading: Reading, doomed: Callable[[], Peer]) -> None:
    first = doomed()
    key = reading.transport.connect(first.exported)
    first.kill()
    second = doomed()
    assert second.exported != first.exported
    again = reading.transport.connect(second.exported)
    assert again != key
    assert reading.read(again, [3], [4]).poll() is PullState.DONE
    reading.assert_read([3], [4])


def test_a_hanging_peer_keeps_its_reads_until_it_dies(reading: Reading, doomed: Callable[[], Peer]) -> None:
    victim = doomed()
    victim.hang()
    peer = reading.transport.connect(victim.exported)
    pull = reading.transport.start_pull(peer, [10, 11], [1, 2])
    for _ in range(20):
        assert pull.poll() is PullState.PENDING
    # Forgetting the peer gives nothing back: its read may still write.
    reading.transport.disconnect(peer)
    assert pull.poll() is PullState.PENDING
    with pytest.raises(PeerLostError):
        reading.transport.start_pull(peer, [12], [1])
    victim.kill()
    wait_until(lambda: pull.poll() is PullState.FAILED)
    assert isinstance(pull.error, PeerLostError)
    assert pull.poll() is PullState.FAILED
    # A failed read may have written its own blocks, or some of them, but no other.
    others = [block for block in range(NUM_BLOCKS) if block not in (10, 11)]
    assert not reading.pool[others].any()


async def test_a_read_from_a_hanging_peer_goes_to_quarantine_and_settles_when_it_dies(
    reading: Reading, doomed: Callable[[], Peer]
) -> None:
    settled: list[int] = []
    quarantine = Quarantine(alarm_s=60, clock=time.monotonic)
    reader = KvReader(
        reading.transport,
        read_timeout_s=0.2,
        chunk_blocks=2,
        quarantine=quarantine,
        on_settled=settled.extend,
    )
    victim = doomed()
    victim.hang()
    reads = reader.open(await reader.connect(victim.exported))
    reads.start([20, 21, 22], [1, 2, 3], num_tokens=48)
    with pytest.raises(TransferTimeoutError, match="2 blocks"):
        await reads.wait()
    assert reads.unsettled == {20, 21}
    assert reads.give_up() == {20, 21}
    assert quarantine.blocks == {20, 21}
    for _ in range(50):
        await asyncio.sleep(0.002)
    assert settled == []
    victim.kill()
    await until(lambda: not len(quarantine))
    assert sorted(settled) == [20, 21]
    await reader.close()


def test_a_second_pool_is_refused(reading: Reading) -> None:
    with pytest.raises(RuntimeError, match="registered already"):
        reading.transport.register(region_of(empty_pool()))


@pytest.mark.parametrize("name", registry.names())
def test_without_a_pool_there_is_nothing_to_export(name: str) -> None:
    transport = registry.create(name, TransportConfig("bare", 1))
    with pytest.raises(RuntimeError, match="no pool"):
        transport.export()
    transport.close()
    transport.close()


@pytest.mark.parametrize("name", registry.names())
def test_closing_leaves_reads_in_flight_to_settle(name: str) -> None:
    reading = Reading(name)
    victim = reading.peer()
    victim.hang()
    peer = reading.transport.connect(victim.exported)
    pull = reading.transport.start_pull(peer, [1], [2])
    reading.transport.close()
    assert pull.poll() is PullState.PENDING
    victim.kill()
    wait_until(lambda: pull.poll() is PullState.FAILED)
