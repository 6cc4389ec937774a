"""What fake workers of both roles share: a server, reports, and ways to go."""

# gRPC names the methods.
# ruff: noqa: N802

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import grpc

from kvrelay.v1 import worker_pb2
from kvrelay.v1.worker_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server
from prefix_index.hashing import HASH_VERSION

HEARTBEAT_S = 0.05

_incarnations = itertools.count(1)
_dying: set[asyncio.Task[None]] = set()


class FakeWorker(WorkerServicer):
    """What both roles share: a server, reports, and ways to go."""

    def __init__(self, worker_id: str, role: int, block_size: int) -> None:
        self.info = worker_pb2.WorkerInfo(
            worker_id=worker_id,
            incarnation=next(_incarnations),
            role=role,
            identity=worker_pb2.Identity(model="fake", block_size=block_size, hash_version=HASH_VERSION),
        )
        self.stats = worker_pb2.WorkerStats(blocks_total=1000, blocks_free=1000)
        self.draining = False
        self.cancelled: list[tuple[str, int]] = []
        self._awake = asyncio.Event()
        self._awake.set()
        self._server: grpc.aio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def alive(self) -> bool:
        """Whether the server runs."""
        return self._server is not None

    async def start(self) -> None:
        """Listens on a free port of 127.0.0.1."""
        server = grpc.aio.server()
        add_WorkerServicer_to_server(self, server)
        self._register(server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._server = server
        self.info.endpoint = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        """The process goes at once: connections break, the port is closed. Again: nothing happens."""
        server, self._server = self._server, None
        self._awake.set()
        if server is not None:
            await server.stop(grace=None)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def restart(self) -> None:
        """A new process takes the worker's name, on another port."""
        await self.stop()
        self.info.incarnation = next(_incarnations)
        await self.start()

    def hang(self) -> None:
        """The process stops as by SIGSTOP: connections stay, nothing is said."""
        self._awake.clear()

    def wake(self) -> None:
        """Goes on after `hang`."""
        self._awake.set()

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Runs `work` until the worker goes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def die_soon(self) -> None:
        """`stop`, from within a call that it ends."""
        task = asyncio.get_running_loop().create_task(self.stop())
        _dying.add(task)
        task.add_done_callback(_dying.discard)

    def _register(self, server: grpc.aio.Server) -> None:
        raise NotImplementedError

    async def Describe(self, request: worker_pb2.DescribeRequest, context: Any) -> worker_pb2.WorkerInfo:
        return self.info

    async def Watch(
        self, request: worker_pb2.WatchRequest, context: Any
    ) -> AsyncIterator[worker_pb2.WorkerReport]:
        while True:
            await self._awake.wait()
            yield worker_pb2.WorkerReport(
                worker_id=self.info.worker_id,
                incarnation=self.info.incarnation,
                draining=self.draining,
                stats=self.stats,
            )
            await asyncio.sleep(request.interval_ms / 1000 or HEARTBEAT_S)

    async def Drain(self, request: worker_pb2.DrainRequest, context: Any) -> worker_pb2.DrainResponse:
        self.draining = True
        return worker_pb2.DrainResponse()
