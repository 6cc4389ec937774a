"""Helpers of the index's tests."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b

from redis.asyncio import Redis

from prefix_index.publisher import RedisIndexPublisher


def names(count: int, tag: str = "") -> list[bytes]:
    """Made-up block names; equal arguments give equal names."""
    return [blake2b(f"{tag}/{number}".encode(), digest_size=16).digest() for number in range(count)]


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = 30.0) -> None:
    """Polls until `condition` holds."""
    deadline = time.monotonic() + timeout_s
    while True:
        outcome = condition()
        if inspect.isawaitable(outcome):
            outcome = await outcome
        if outcome:
            return
        assert time.monotonic() < deadline, f"not true after {timeout_s} s"
        await asyncio.sleep(0.01)


async def keys_left(url: str, namespace: str) -> list[str]:
    """Keys of a namespace that exist."""
    async with Redis.from_url(url, protocol=2) as client:
        return sorted([key.decode() async for key in client.scan_iter(f"{{kvrelay:{namespace}}}:*")])


class Worker:
    """A publisher with the cache that a worker would have behind it."""

    def __init__(
        self, url: str, namespace: str, worker_id: str, incarnation: int = 1, lease_s: float = 30.0
    ) -> None:
        self.blocks: dict[bytes, None] = {}
        self.snapshots = 0
        self.publisher = RedisIndexPublisher(url, namespace, worker_id, incarnation, self._snapshot, lease_s)

    async def _snapshot(self) -> Sequence[bytes]:
        self.snapshots += 1
        return list(self.blocks)

    def store(self, stored: Sequence[bytes]) -> None:
        """Adds blocks and says so."""
        self.blocks.update(dict.fromkeys(stored))
        self.publisher.publish(stored, ())

    def evict(self, evicted: Sequence[bytes]) -> None:
        """Drops blocks and says so."""
        for name in evicted:
            self.blocks.pop(name, None)
        self.publisher.publish((), evicted)

    async def start(self) -> None:
        """Starts and waits until the index knows everything."""
        await self.publisher.start()
        await until(lambda: self.publisher.registered)

    async def close(self) -> None:
        """Leaves."""
        await self.publisher.close()
