"""The plain policy: the least loaded worker of each role, whatever anybody holds."""

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


class LeastLoadedPolicy:
    """Balances by load alone. Prefills locally only where no prefill worker lives."""

    name = "least_loaded"

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings

    def choose(
        self, request: RoutingRequest, workers: Sequence[WorkerView], matches: Mapping[str, int]
    ) -> Placement:
        """See `RoutingPolicy.choose`. Takes no account of `matches`."""
        decoder = min(
            decode_candidates(request, workers),
            key=lambda worker: (worker.running, tie_rank(request.tie_break, worker.worker_id)),
        )
        prefillers = [worker for worker in workers if worker.can_prefill]
        if prefillers:
            prefiller = min(
                prefillers,
                key=lambda worker: (
                    worker.queued_prefill_tokens,
                    worker.running,
                    tie_rank(request.tie_break, worker.worker_id),
                ),
            )
            return Placement(decoder.worker_id, prefiller.worker_id, "remote: least loaded of each role")
        if self._settings.force_remote_prefill:
            raise NoWorkerError("no prefill worker lives, and prefill on decode workers is switched off")
        return Placement(decoder.worker_id, None, "local: no prefill worker lives")


def create(settings: PolicySettings) -> LeastLoadedPolicy:
    """Makes the policy."""
    return LeastLoadedPolicy(settings)
