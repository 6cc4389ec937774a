"""What a Ray actor, or a test, does with a worker of any role: start, drain, stop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol

import grpc

from kvrelay.v1 import worker_pb2
from worker.assembly import Assembly, assemble
from worker.config import WorkerConfig
from worker.runtime import RoleService, WorkerRuntime


class RoleServicer(RoleService, Protocol):
    """A role with the gRPC service that it brings."""

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the service to the worker's server."""
        ...


class RoleWorker(ABC):
    """One worker in this process. All methods belong to one event loop.

    Args:
        config: its settings.
        build: makes model, engine and transports.
    """

    role: ClassVar[worker_pb2.WorkerRole]

    def __init__(self, config: WorkerConfig, build: Callable[[WorkerConfig], Assembly] = assemble) -> None:
        self._config = config
        self._build = build
        self._runtime: WorkerRuntime | None = None

    @abstractmethod
    def make_servicer(self, runtime: WorkerRuntime) -> RoleServicer:
        """The role, over the runtime that was built for it."""

    async def start(self) -> worker_pb2.WorkerInfo:
        """Loads the model and serves. Raises what `build` raises."""
        assembly = await asyncio.to_thread(self._build, self._config)
        runtime = self._runtime = WorkerRuntime(self._config, self.role, assembly)
        servicer = self.make_servicer(runtime)
        await runtime.serve(servicer, servicer.register)
        return runtime.info

    @property
    def failed(self) -> asyncio.Future[BaseException]:
        """Done once the engine has died, with its error: the process is then to end."""
        return self._started().failed

    def report(self) -> worker_pb2.WorkerReport:
        """What Watch reports, of this moment."""
        return self._started().report()

    async def drain(self, timeout_s: float) -> int:
        """Stops admission; waits for the last request. Returns the requests that are left."""
        return await self._started().drain(timeout_s)

    async def stop(self) -> None:
        """Ends what is left and stops serving. No error before `start`."""
        if self._runtime is not None:
            await self._runtime.stop()

    def _started(self) -> WorkerRuntime:
        if self._runtime is None:
            raise RuntimeError("the worker has not been started")
        return self._runtime
