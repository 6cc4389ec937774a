"""What routers ask of the prefix index, and its Redis implementation.

The worker's side is `publisher.py`; the layout in Redis is `keys.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prefix_index.breaker import CircuitBreaker
from prefix_index.connection import IndexConnection
from prefix_index.errors import IndexConfigError, IndexUnavailableError
from prefix_index.hashing import HASH_BYTES
from prefix_index.keys import booking_field
from prefix_index.scripts import BOOK, MATCH, Script
from prefix_index.sweeper import Sweeper
from telemetry.logs import fields

__all__ = [
    "IndexConfigError",
    "IndexMatch",
    "IndexPublisher",
    "IndexUnavailableError",
    "PrefixIndex",
    "RedisPrefixIndex",
]

logger = logging.getLogger(__name__)

# Below the 0.25 s that callers are promised, with room for a busy event loop.
_TIMEOUT_S = 0.2
_COOLDOWN_S = 0.5


@dataclass(frozen=True, slots=True)
class IndexMatch:
    """Answer to one lookup. Only workers with a live lease appear.

    Attributes:
        leading_blocks: worker id -> leading blocks of the chain that it holds (0 where none).
        booked_tokens: worker id -> prefill tokens booked by all routers and not expired.
        booked_requests: worker id -> requests booked by all routers and not expired.
    """

    leading_blocks: Mapping[str, int]
    booked_tokens: Mapping[str, int]
    booked_requests: Mapping[str, int]


class PrefixIndex(Protocol):
    """One deployment's index, for a router. Methods raise IndexUnavailableError within 0.25 s."""

    async def match(self, chain: Sequence[bytes]) -> IndexMatch:
        """Looks a whole chain up in one round trip."""
        ...

    async def book(self, worker_id: str, request_id: str, prefill_tokens: int, ttl_s: float) -> None:
        """Notes load that a worker is about to get, as an entry that expires by itself."""
        ...

    async def unbook(self, worker_id: str, request_id: str) -> None:
        """Removes an entry. Unknown entries are no error."""
        ...

    async def close(self) -> None:
        """Ends the use of the index."""
        ...


class IndexPublisher(Protocol):
    """A worker's hand in the index: registration, lease, stored and evicted blocks.

    Owns one task. Never blocks or fails its caller: while Redis is away it drops the deltas and, once it
    is back (or its lease was lost), registers under a new epoch and publishes `snapshot()` anew.
    """

    async def start(self) -> None:
        """Begins to register; returns at once."""
        ...

    def publish(self, stored: Sequence[bytes], evicted: Sequence[bytes]) -> None:
        """Queues changes; they go out in batches within 50 ms."""
        ...

    async def close(self) -> None:
        """Gives the lease up at once, so that the blocks vanish with it."""
        ...


class RedisPrefixIndex:
    """The PrefixIndex that all routers of a deployment share. Belongs to one event loop.

    After a failure all calls fail at once for half a second; then one at a time tries again.

    Args:
        url: `redis://`, `rediss://` or `unix://`, with credentials and database where needed.
        namespace: separates deployments that share a Redis.

    Raises:
        IndexConfigError: the URL or the namespace is malformed.
    """

    def __init__(self, url: str, namespace: str = "default") -> None:
        self._connection = IndexConnection(url, namespace, _TIMEOUT_S)
        self._breaker = CircuitBreaker(_COOLDOWN_S)
        self._sweeper = Sweeper(self._connection)

    @property
    def available(self) -> bool:
        """Whether Redis answered when it was last asked."""
        return self._breaker.closed

    async def check(self) -> None:
        """Asks Redis for a sign of life. Raises IndexConfigError (credentials) or IndexUnavailableError."""
        await self._connection.check()

    async def match(self, chain: Sequence[bytes]) -> IndexMatch:
        """Looks a whole chain up in one round trip.

        Args:
            chain: block names, each 16 bytes, first to last.

        Raises:
            IndexUnavailableError: within 0.25 s.
        """
        joined = b"".join(chain)
        if len(joined) != HASH_BYTES * len(chain):
            raise ValueError(f"block names have {HASH_BYTES} bytes")
        needs_sweep, *flat = await self._run(MATCH, joined)
        if needs_sweep:
            self._sweeper.notice()
        workers = [worker.decode() for worker in flat[0::4]]
        return IndexMatch(
            leading_blocks=dict(zip(workers, flat[1::4], strict=True)),
            booked_tokens=dict(zip(workers, flat[2::4], strict=True)),
            booked_requests=dict(zip(workers, flat[3::4], strict=True)),
        )

    async def book(self, worker_id: str, request_id: str, prefill_tokens: int, ttl_s: float) -> None:
        """Notes `prefill_tokens` and one request for a worker, for `ttl_s` seconds. Again: replaces.

        Raises:
            IndexUnavailableError: within 0.25 s; the booking may have been made.
        """
        if prefill_tokens < 0 or ttl_s <= 0:
            raise ValueError(f"cannot book {prefill_tokens} tokens for {ttl_s} s")
        ttl_ms = max(1, round(ttl_s * 1000))
        await self._run(BOOK, booking_field(worker_id, request_id), worker_id, prefill_tokens, ttl_ms)

    async def unbook(self, worker_id: str, request_id: str) -> None:
        """Removes a booking. Unknown ones are no error.

        Raises:
            IndexUnavailableError: within 0.25 s; the booking then ends by itself.
        """
        field = booking_field(worker_id, request_id)
        await self._guarded(self._connection.command, "HDEL", self._connection.keys.bookings, field)

    async def close(self) -> None:
        """Ends the sweep in progress and closes the connections."""
        await self._sweeper.close()
        await self._connection.close()

    async def _run(self, script: Script, *args: str | bytes | int) -> Any:
        return await self._guarded(self._connection.run, script, *args)

    async def _guarded(self, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        if not self._breaker.admit():
            raise IndexUnavailableError(f"Redis at {self._connection.address} failed a moment ago")
        try:
            reply = await call(*args)
        except IndexUnavailableError as error:
            if self._breaker.closed:
                logger.warning(
                    "prefix index unavailable, routing by load alone", extra=fields(error=str(error))
                )
            self._breaker.fail()
            raise
        except BaseException:  # the caller was cancelled: neither success nor failure
            self._breaker.abandon()
            raise
        if not self._breaker.closed:
            logger.info("prefix index available again", extra=fields(address=self._connection.address))
        self._breaker.succeed()
        return reply
