"""The default policy: the least predicted work before the first token, and a fair share of decoding.

All costs are in tokens of prefill. Work that waits and work that the cache spares stand in one sum, so that
a prefix hit attracts requests only until the queue in front of it costs more than it spares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.policies.base import (
    NoWorkerError,
    Placement,
    PolicySettings,
    RoutingRequest,
    WorkerView,
    decode_candidates,
    tie_rank,
)

# Reading one token's KV from another worker, against computing it.
TRANSFER_COST = 0.1
# Starting a handover at all: two round trips and the first read.
HANDOVER_COST = 32.0
# One more sequence in a decode batch: what it slows all the others, over the length of an answer.
SEQUENCE_COST = 16.0
# One token of the context that does not fit into the worker's free and cached blocks: it waits or preempts.
SHORTAGE_COST = 8.0


class CostPolicy:
    """Minimises predicted prefill work, weighted with the load of decoding."""

    name = "cost"

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings

    def choose(
        self, request: RoutingRequest, workers: Sequence[WorkerView], matches: Mapping[str, int]
    ) -> Placement:
        """See `RoutingPolicy.choose`."""
        decoders = decode_candidates(request, workers)
        prefillers = [worker for worker in workers if worker.can_prefill]
        if not prefillers and self._settings.force_remote_prefill:
            raise NoWorkerError("no prefill worker lives, and prefill on decode workers is switched off")
        prefiller = min(
            prefillers,
            key=lambda worker: (
                _prefill_cost(request, worker, matches),
                tie_rank(request.tie_break, worker.worker_id),
            ),
            default=None,
        )
        remote_cost = None if prefiller is None else _prefill_cost(request, prefiller, matches)

        def decode_cost(worker: WorkerView) -> tuple[float, int]:
            held = min(matches.get(worker.worker_id, 0), request.num_tokens)
            ways: list[float] = []
            if remote_cost is not None:
                transfer = HANDOVER_COST + TRANSFER_COST * (request.num_tokens - held)
                ways.append(remote_cost + transfer)
            if self._may_be_local(request, worker, matches, remote_cost):
                ways.append(worker.queued_prefill_tokens + _uncached(request, worker, matches))
            load = SEQUENCE_COST * worker.running + _shortage_cost(request, worker, held)
            return min(ways) + load, tie_rank(request.tie_break, worker.worker_id)

        decoder = min(decoders, key=decode_cost)
        return self._place(request, decoder, prefiller, matches, remote_cost)

    def _may_be_local(
        self,
        request: RoutingRequest,
        decoder: WorkerView,
        matches: Mapping[str, int],
        remote_cost: float | None,
    ) -> bool:
        if self._settings.force_remote_prefill:
            return False
        if remote_cost is None:
            return True
        return _uncached(request, decoder, matches) <= self._settings.local_prefill_tokens

    def _place(
        self,
        request: RoutingRequest,
        decoder: WorkerView,
        prefiller: WorkerView | None,
        matches: Mapping[str, int],
        remote_cost: float | None,
    ) -> Placement:
        left = _uncached(request, decoder, matches)
        share = f"{left} of {request.num_tokens} tokens to compute"
        if prefiller is None or remote_cost is None:
            return Placement(decoder.worker_id, None, f"local: no prefill worker lives; {share}")
        limit = self._settings.local_prefill_tokens
        if self._may_be_local(request, decoder, matches, remote_cost):
            held = request.num_tokens - left
            remote = remote_cost + HANDOVER_COST + TRANSFER_COST * (request.num_tokens - held)
            if decoder.queued_prefill_tokens + left <= remote:
                return Placement(decoder.worker_id, None, f"local: {share}, limit {limit}")
            why = "decode worker's prefill queue is longer"
        elif self._settings.force_remote_prefill:
            why = "forced"
        else:
            why = f"{left} tokens on the decode worker, limit {limit}"
        left = _uncached(request, prefiller, matches)
        share = f"{left} of {request.num_tokens} tokens to compute"
        return Placement(decoder.worker_id, prefiller.worker_id, f"remote: {share}; {why}")


def _uncached(request: RoutingRequest, worker: WorkerView, matches: Mapping[str, int]) -> int:
    """Tokens that the worker would compute: at least the last one, whose logits give the first token."""
    return max(1, request.num_tokens - matches.get(worker.worker_id, 0))


def _prefill_cost(request: RoutingRequest, worker: WorkerView, matches: Mapping[str, int]) -> float:
    held = min(matches.get(worker.worker_id, 0), request.num_tokens)
    work = worker.queued_prefill_tokens + _uncached(request, worker, matches)
    return work + _shortage_cost(request, worker, held)


def _shortage_cost(request: RoutingRequest, worker: WorkerView, held: int) -> float:
    room = worker.blocks_available * request.block_size
    return SHORTAGE_COST * max(0, request.num_tokens - held - room)


def create(settings: PolicySettings) -> CostPolicy:
    """Makes the policy."""
    return CostPolicy(settings)
