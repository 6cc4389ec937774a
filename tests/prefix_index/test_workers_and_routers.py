"""Whole workers and a router, in any order of events: what the router sees becomes what the workers hold."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from redis.asyncio import Redis

from cluster import embedded_redis
from prefix_index.index import IndexUnavailableError, RedisPrefixIndex
from tests.prefix_index.support import Worker, keys_left, names, until

T = TypeVar("T")
CHAIN = names(6)


class ClusterMachine(RuleBasedStateMachine):
    """Workers store, evict, leave, are replaced; Redis forgets or is restarted; then all settles."""

    worker_ids = st.sampled_from(("prefill-0", "prefill-1", "decode-0"))
    positions = st.sets(st.integers(0, len(CHAIN) - 1), min_size=1)

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kvrelay-test-"))
        self.server = embedded_redis.start(self.folder / "redis.log")
        self.runner = asyncio.Runner()
        self.index = self.run(self._open_index())
        self.workers: dict[str, Worker] = {}
        self.incarnations = 0

    def run(self, action: Coroutine[object, object, T]) -> T:
        return self.runner.run(action)

    async def _open_index(self) -> RedisPrefixIndex:
        return RedisPrefixIndex(self.server.url)

    @rule(worker_id=worker_ids, positions=positions)
    def begin(self, worker_id: str, positions: set[int]) -> None:
        """A new process; one that bears the name already goes on for a while, as a hung one would."""
        self.incarnations += 1
        predecessor = self.workers.pop(worker_id, None)
        worker = Worker(self.server.url, "default", worker_id, self.incarnations)
        worker.blocks = dict.fromkeys(CHAIN[position] for position in sorted(positions))
        self.run(worker.start())
        self.workers[worker_id] = worker
        if predecessor is not None:
            predecessor.store(CHAIN)
            self.run(predecessor.close())

    @rule(worker_id=worker_ids, stored=positions, evicted=positions)
    def change(self, worker_id: str, stored: set[int], evicted: set[int]) -> None:
        if worker := self.workers.get(worker_id):
            worker.store([CHAIN[position] for position in sorted(stored)])
            worker.evict([CHAIN[position] for position in evicted])

    @rule(worker_id=worker_ids)
    def leave(self, worker_id: str) -> None:
        if worker := self.workers.pop(worker_id, None):
            self.run(worker.close())

    @rule()
    def redis_forgets(self) -> None:
        async def flush() -> None:
            async with Redis.from_url(self.server.url) as client:
                await client.flushall()

        self.run(flush())

    @rule()
    def redis_restarts(self) -> None:
        self.server.stop()
        self.server = embedded_redis.start(self.folder / "redis.log", self.server.port)

    @rule()
    def settle(self) -> None:
        expected = {}
        for worker_id, worker in self.workers.items():
            missing = [position for position, name in enumerate(CHAIN) if name not in worker.blocks]
            expected[worker_id] = missing[0] if missing else len(CHAIN)

        async def as_expected() -> bool:
            try:
                return (await self.index.match(CHAIN)).leading_blocks == expected
            except IndexUnavailableError:
                return False

        self.run(until(as_expected))

    def teardown(self) -> None:
        try:
            self.settle()
            self.run(self._finish())
        finally:
            self.runner.close()
            self.server.stop()
            shutil.rmtree(self.folder)

    async def _finish(self) -> None:
        for worker in self.workers.values():
            await worker.close()
        await self.index.close()
        assert await keys_left(self.server.url, "default") == []


TestClusterMachine = ClusterMachine.TestCase
TestClusterMachine.settings = settings(
    max_examples=6, stateful_step_count=15, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
