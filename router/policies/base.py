"""The routing seam: what a policy sees and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """What is to be placed. `num_tokens` is the whole context; `fixed_decode` survives a failover."""

    num_tokens: int
    block_size: int
    fixed_decode: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes. `prefill` None means that the decode worker prefills by itself."""

    decode: str
    prefill: str | None
    reason: str


class NoWorkerError(Exception):
    """No live worker can take the request; the message says which role is missing."""


class RoutingPolicy(Protocol):
    """Chooses a pair of workers. Pure: no clock, no network, no state that is not in the arguments."""

    name: str

    def choose(
        self, request: RoutingRequest, workers: Sequence[WorkerView], matches: Mapping[str, int]
    ) -> Placement:
        """Places the request. `matches` maps worker ids to leading tokens held. Raises NoWorkerError."""
        ...
