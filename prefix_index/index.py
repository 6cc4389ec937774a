"""SEAM, to be replaced by the Redis implementation: what routers ask of the prefix index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class IndexUnavailableError(Exception):
    """Redis does not answer. The caller routes by load alone."""


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

    async def close(self) -> None: ...


class IndexPublisher(Protocol):
    """A worker's hand in the index: registration, lease, stored and evicted blocks.

    Owns one task. Never blocks or fails its caller: while Redis is away it drops the deltas and, once it
    is back (or its lease was lost), registers under a new epoch and publishes `snapshot()` anew.
    """

    async def start(self) -> None: ...

    def publish(self, stored: Sequence[bytes], evicted: Sequence[bytes]) -> None:
        """Queues changes; they go out in batches within 50 ms."""
        ...

    async def close(self) -> None:
        """Gives the lease up at once, so that the blocks vanish with it."""
        ...
