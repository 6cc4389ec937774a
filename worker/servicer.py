"""The gRPC service that every worker answers, whatever its role."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc

from kvrelay.v1 import worker_pb2, worker_pb2_grpc

# A shorter interval would let one watcher keep the event loop busy.
_MIN_INTERVAL_S = 0.05


class WorkerServicer(worker_pb2_grpc.WorkerServicer):
    """Describe, Watch and Drain.

    Args:
        info: what Describe answers.
        report: one report of this moment.
        drain: stops admission, waits; returns the requests left.
        default_interval_s: between two reports, where the watcher names none.
    """

    def __init__(
        self,
        info: worker_pb2.WorkerInfo,
        report: Callable[[], worker_pb2.WorkerReport],
        drain: Callable[[float], Awaitable[int]],
        default_interval_s: float,
    ) -> None:
        self._info = info
        self._report = report
        self._drain = drain
        self._default_interval_s = default_interval_s

    async def Describe(  # noqa: N802 - named by the .proto file
        self,
        request: worker_pb2.DescribeRequest,
        context: grpc.aio.ServicerContext[worker_pb2.DescribeRequest, worker_pb2.WorkerInfo],
    ) -> worker_pb2.WorkerInfo:
        """Who this worker is."""
        return self._info

    async def Watch(  # noqa: N802
        self,
        request: worker_pb2.WatchRequest,
        context: grpc.aio.ServicerContext[worker_pb2.WatchRequest, worker_pb2.WorkerReport],
    ) -> AsyncIterator[worker_pb2.WorkerReport]:
        """One report at once, then one each interval, until the watcher goes."""
        interval_s = max(_MIN_INTERVAL_S, request.interval_ms / 1000 or self._default_interval_s)
        while True:
            yield self._report()
            await asyncio.sleep(interval_s)

    async def Drain(  # noqa: N802
        self,
        request: worker_pb2.DrainRequest,
        context: grpc.aio.ServicerContext[worker_pb2.DrainRequest, worker_pb2.DrainResponse],
    ) -> worker_pb2.DrainResponse:
        """Stops admission; answers when the last request has ended or the time is over."""
        return worker_pb2.DrainResponse(remaining=await self._drain(request.timeout_s))
