"""The supervisor's door: the table of workers in, the router's state out."""

from __future__ import annotations

import time

import grpc

from kvrelay.v1 import router_pb2
from kvrelay.v1.router_pb2_grpc import RouterAdminServicer
from router.dispatch import ClusterDispatcher
from router.index_gate import IndexGate
from router.metrics import RouterMetrics
from router.worker_table import WorkerTable

_SetWorkersContext = grpc.aio.ServicerContext[router_pb2.WorkerTable, router_pb2.SetWorkersResponse]
_StatusContext = grpc.aio.ServicerContext[router_pb2.StatusRequest, router_pb2.RouterStatus]


class RouterAdmin(RouterAdminServicer):
    """Implements `kvrelay.v1.RouterAdmin`."""

    def __init__(
        self,
        router_id: str,
        table: WorkerTable,
        dispatcher: ClusterDispatcher,
        gate: IndexGate,
        metrics: RouterMetrics,
    ) -> None:
        self._router_id = router_id
        self._table = table
        self._dispatcher = dispatcher
        self._gate = gate
        self._metrics = metrics
        self._started = time.monotonic()

    async def SetWorkers(  # noqa: N802 (gRPC names it)
        self, request: router_pb2.WorkerTable, context: _SetWorkersContext
    ) -> router_pb2.SetWorkersResponse:
        """Replaces the table. INVALID_ARGUMENT names what is wrong with it."""
        try:
            await self._table.set_workers(request)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return router_pb2.SetWorkersResponse()

    async def Status(  # noqa: N802 (gRPC names it)
        self, request: router_pb2.StatusRequest, context: _StatusContext
    ) -> router_pb2.RouterStatus:
        """The router's state at this moment."""
        return self.status()

    def status(self) -> router_pb2.RouterStatus:
        """What Status answers."""
        return router_pb2.RouterStatus(
            router_id=self._router_id,
            workers=[
                router_pb2.WorkerStatus(
                    info=link.info,
                    report=link.report,
                    healthy=link.healthy and not link.refusal,
                    silent_s=link.silent_s,
                )
                for link in self._table.links
            ],
            queued=self._dispatcher.queued,
            running=self._dispatcher.running,
            index_available=self._gate.available,
            requests_total=self._metrics.requests_total,
            prompt_tokens_total=self._metrics.prompt_tokens_total,
            cached_tokens_total=self._metrics.cached_tokens_total,
            completion_tokens_total=self._metrics.completion_tokens_total,
            tokens_per_second=self._metrics.tokens_rate.per_second(),
            uptime_s=time.monotonic() - self._started,
        )
