"""The routing seam: what a policy sees and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One live worker at the moment of choosing.

    Attributes:
        worker_id: its name.
        can_prefill: whether it takes prefill work for others (prefill role).
        can_decode: whether it decodes (decode role; it can prefill for itself).
        queued_prefill_tokens: uncomputed prompt tokens: reported, plus booked since the report.
        running: sequences: reported, plus booked since the report.
        blocks_available: free and cached blocks.
        blocks_total: size of the pool.
    """

    worker_id: str
    can_prefill: bool
    can_decode: bool
    queued_prefill_tokens: int
    running: int
    blocks_available: int
    blocks_total: int


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What is to be placed.

    Attributes:
        num_tokens: the whole context.
        block_size: tokens in a KV block.
        fixed_decode: the decode worker that survived a failover; ignored where it is not among the workers.
        tie_break: a hash of the request, by which equal workers are told apart: spreads idle load without
            randomness or state.
    """

    num_tokens: int
    block_size: int
    fixed_decode: str | None = None
    tie_break: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes. `prefill` None means that the decode worker prefills by itself."""

    decode: str
    prefill: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What a policy is told when it is made.

    Attributes:
        local_prefill_tokens: up to so many uncached tokens may be prefilled by the decode worker.
        force_remote_prefill: never prefill on a decode worker.
    """

    local_prefill_tokens: int
    force_remote_prefill: bool


class NoWorkerError(Exception):
    """No live worker can take the request; the message says which role is missing."""


class RoutingPolicy(Protocol):
    """Chooses a pair of workers. Pure: no clock, no network, no state that is not in the arguments."""

    name: str

    def choose(
        self, request: RoutingRequest, workers: Sequence[WorkerView], matches: Mapping[str, int]
    ) -> Placement:
        """Places the request.

        Args:
            request: what is to be placed.
            workers: the live ones, in any order.
            matches: worker id -> leading tokens of the context that it holds; absent is 0.

        Raises:
            NoWorkerError: a role that is needed is missing.
        """
        ...


def tie_rank(tie_break: int, worker_id: str) -> int:
    """Rank of a worker among equals, for one request (rendezvous hashing, Thaler and Ravishankar 1998)."""
    data = tie_break.to_bytes(8, "little") + worker_id.encode()
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def decode_candidates(request: RoutingRequest, workers: Sequence[WorkerView]) -> list[WorkerView]:
    """Workers that may decode: the fixed one alone if it is there. Raises NoWorkerError where none may."""
    decoders = [worker for worker in workers if worker.can_decode]
    if not decoders:
        raise NoWorkerError("no decode worker lives")
    fixed = [worker for worker in decoders if worker.worker_id == request.fixed_decode]
    return fixed or decoders
