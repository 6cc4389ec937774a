"""What the front doors hold: admission and generations, on top of workers, index and policy."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from router.admission import AdmissionQueue
from router.background import BackgroundTasks
from router.config import RouterConfig
from router.generation import Admission, GenerationRequest
from router.index_gate import IndexGate
from router.metrics import RouterMetrics
from router.placement import Placer
from router.policies.base import RoutingPolicy
from router.routed_generation import RoutedGeneration, Services
from router.worker_table import WorkerTable


class ClusterDispatcher:
    """Implements `router.generation.Dispatcher` for a cluster of workers.

    Args:
        config: the router's settings.
        table: the workers.
        gate: the prefix index.
        policy: the routing policy.
        metrics: is told what happens.
    """

    def __init__(
        self,
        config: RouterConfig,
        table: WorkerTable,
        gate: IndexGate,
        policy: RoutingPolicy,
        metrics: RouterMetrics,
    ) -> None:
        self._forced = config.force_remote_prefill
        self._table = table
        self._queue = AdmissionQueue(config.max_running, config.max_queued)
        self._background = BackgroundTasks()
        metrics.queued.set_function(lambda: self._queue.queued)
        metrics.running.set_function(lambda: self._queue.running)
        self._services = Services(
            placer=Placer(table, gate, policy),
            metrics=metrics,
            background=self._background,
            max_attempts=config.max_attempts,
            new_wait_s=config.heartbeat_timeout_s,
            interrupted_wait_s=config.worker_wait_s,
        )

    def admit(
        self,
        deadline: float | None = None,
        arrived_at: float | None = None,
        places: int = 1,
        priority: int = 0,
    ) -> AbstractAsyncContextManager[Admission]:
        """See `router.generation.Dispatcher`."""
        return self._queue.admit(deadline, arrived_at, places, priority)

    def generate(self, request: GenerationRequest, admission: Admission) -> RoutedGeneration:
        """See `router.generation.Dispatcher`."""
        return RoutedGeneration(request, admission, self._services)

    @property
    def ready(self) -> bool:
        """See `router.generation.Dispatcher`."""
        live = [link for link in self._table.links if link.available]
        prefills = any(link.can_prefill for link in live) or not self._forced
        return prefills and any(link.can_decode for link in live)

    @property
    def draft_methods(self) -> tuple[str, ...]:
        """See `router.generation.Dispatcher`: those that all workers serve, for any may get the request."""
        served = [
            link.info.draft_methods for link in self._table.links if link.can_decode and not link.refusal
        ]
        if not served:
            return ()
        return tuple(method for method in served[0] if all(method in others for others in served))

    @property
    def queued(self) -> int:
        """Client requests in the admission queue."""
        return self._queue.queued

    @property
    def running(self) -> int:
        """Generations of client requests admitted and not ended."""
        return self._queue.running

    async def close(self) -> None:
        """Waits a moment for tickets that are being given back."""
        await self._background.close()
