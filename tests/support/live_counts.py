"""What a live deployment counts, asked of its workers, its router and its Redis themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import grpc
import redis

from kvrelay.v1 import router_pb2, router_pb2_grpc, worker_pb2, worker_pb2_grpc
from prefix_index.hashing import ChainHasher, hash_model
from prefix_index.index import IndexUnavailableError, RedisPrefixIndex
from prefix_index.keys import Keys
from tests.support.live_cluster import LiveCluster
from tests.support.waiting import LIMIT_S, wait_until

Counts = Mapping[str, worker_pb2.WorkerStats]

# A stopped process answers nothing.
_ANSWER_S = 2.0


def router_status(cluster: LiveCluster) -> router_pb2.RouterStatus | None:
    """As the router knows it; None while it does not serve."""
    address = cluster.state.admin_address
    if not address:
        return None
    with grpc.insecure_channel(address) as channel:
        try:
            stub = router_pb2_grpc.RouterAdminStub(channel)
            answer: router_pb2.RouterStatus = stub.Status(router_pb2.StatusRequest(), timeout=_ANSWER_S)
        except grpc.RpcError:
            return None
    return answer


def counts(cluster: LiveCluster) -> dict[str, worker_pb2.WorkerStats]:
    """Fresh counts of every worker that answers, by worker id."""
    status = router_status(cluster)
    found: dict[str, worker_pb2.WorkerStats] = {}
    for worker in status.workers if status is not None else ():
        with grpc.insecure_channel(worker.info.endpoint) as channel:
            call = worker_pb2_grpc.WorkerStub(channel).Watch(worker_pb2.WatchRequest(), timeout=_ANSWER_S)
            try:
                report = next(iter(call))
            except grpc.RpcError:
                continue
            finally:
                call.cancel()
        if report.incarnation == worker.info.incarnation:
            found[worker.info.worker_id] = report.stats
    return found


def wait_for_counts(cluster: LiveCluster, condition: Callable[[Counts], object]) -> Counts:
    """Returns the counts as soon as they are so."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        now = counts(cluster)
        if condition(now):
            return now
        assert time.monotonic() < deadline, f"still so: {now}\n{cluster.output}"


def prefilling(now: Counts, num_tokens: int) -> str | None:
    """The prefill worker that is in the middle of one prompt of so many tokens: a good part still to do."""
    for worker_id, stats in now.items():
        left = stats.queued_prefill_tokens
        if worker_id.startswith("prefill") and num_tokens // 4 < left < num_tokens:
            return worker_id
    return None


def decoding(now: Counts) -> str | None:
    """The decode worker that has a request, which no prefill worker has any more."""
    if any(stats.running or stats.waiting for name, stats in now.items() if name.startswith("prefill")):
        return None
    busy = [name for name, stats in now.items() if name.startswith("decode") and stats.running]
    return busy[0] if busy else None


def bookings(cluster: LiveCluster) -> int:
    """Reservations of load in Redis."""
    state = cluster.state
    with redis.Redis.from_url(state.redis_url) as connection:
        count = connection.hlen(Keys.of(state.name).bookings)
        assert isinstance(count, int)
        return count


def holdings(cluster: LiveCluster, token_ids: Sequence[int], cache_salt: str = "") -> Mapping[str, int]:
    """Leading blocks of these tokens that each worker has published in the prefix index."""
    status = router_status(cluster)
    if status is None:
        return {}
    identity = status.workers[0].info.identity
    hasher = ChainHasher(hash_model(identity.model, identity.revision), identity.block_size)

    async def match() -> Mapping[str, int]:
        index = RedisPrefixIndex(cluster.state.redis_url, cluster.state.name)
        try:
            return (await index.match(hasher.chain(token_ids, cache_salt))).leading_blocks
        except IndexUnavailableError:
            return {}
        finally:
            await index.close()

    return asyncio.run(match())


def wait_published(
    cluster: LiveCluster, token_ids: Sequence[int], *workers: str, cache_salt: str = ""
) -> None:
    """Returns once the index knows that these workers have all whole blocks of these tokens.

    Workers publish in batches, a moment after the answer.
    """
    status = router_status(cluster)
    assert status is not None
    blocks = len(token_ids) // status.workers[0].info.identity.block_size

    def published() -> bool:
        held = holdings(cluster, token_ids, cache_salt)
        return all(held.get(worker) == blocks for worker in workers)

    wait_until(published)


def wait_told(cluster: LiveCluster) -> None:
    """Returns once the router knows the workers' counts as they are: nothing must be going on.

    Until then it may place requests by a report from the midst of one that has ended.
    """

    def told() -> bool:
        status = router_status(cluster)
        known = {} if status is None else {w.info.worker_id: w.report.stats for w in status.workers}
        return bool(known) and known == counts(cluster)

    wait_until(told)


def unsettled(cluster: LiveCluster, workers: int) -> list[str]:
    """What the deployment still holds for anybody, in words; empty once it is whole and quiet."""
    status = router_status(cluster)
    if status is None:
        return ["no router"]
    found = [f"{worker.info.worker_id} is silent" for worker in status.workers if not worker.healthy]
    if status.queued or status.running:
        found.append(f"the router has {status.queued} queued and {status.running} running")
    if not status.index_available:
        found.append("no prefix index")
    now = counts(cluster)
    if len(now) != workers:
        found.append(f"only {sorted(now)} answer")
    for worker_id, stats in now.items():
        held = {
            "running": stats.running,
            "waiting": stats.waiting,
            "leases": stats.leases,
            "pinned": stats.blocks_pinned,
            "quarantined": stats.blocks_quarantined,
            "missing": stats.blocks_total - stats.blocks_free - stats.blocks_cached,
            "queued tokens": stats.queued_prefill_tokens,
        }
        found += [f"{worker_id}: {count} {name}" for name, count in held.items() if count]
    if not found and (booked := bookings(cluster)):
        found.append(f"{booked} reservations in Redis")
    return found


def wait_quiet(cluster: LiveCluster, workers: int) -> None:
    """Returns once every worker serves and holds nothing: free + cached = pool, no lease, no reservation."""
    deadline = time.monotonic() + 2 * LIMIT_S
    while left := unsettled(cluster, workers):
        assert time.monotonic() < deadline, f"still so: {left}\n{cluster.output}"
        time.sleep(0.02)


@contextmanager
def quiet_around(cluster: LiveCluster, workers: int) -> Iterator[None]:
    """The deployment is whole and quiet before and after the block."""
    wait_quiet(cluster, workers)
    yield
    wait_quiet(cluster, workers)
