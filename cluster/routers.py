"""What the supervisor asks of the deployment's routers, whether it started them or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pydantic import BaseModel

from cluster.processes import ProcessId
from kvrelay.v1 import router_pb2, router_pb2_grpc, worker_pb2

# The table is sent again now and then: a router that lost it, or was started by somebody else, recovers.
PUSH_INTERVAL_S = 2.0
PUSH_TIMEOUT_S = 3.0
# A router whose workers are all away serves errors until they come: no reason to hold its start up for long.
FIRST_REPORTS_S = 15.0


class RouterAddresses(BaseModel):
    """Where a router listens: host:port of its three doors, and its process.

    Of a router that was not started here only `admin` is known.
    """

    http: str = ""
    grpc: str = ""
    admin: str
    pid: int = 0


class Routers(Protocol):
    """The routers of a deployment: told who the workers are, and watched."""

    @property
    def addresses(self) -> RouterAddresses | None:
        """Of one that serves; None while there is none."""
        ...

    @property
    def process(self) -> ProcessId | None:
        """The process that was started here, while there is one."""
        ...

    @property
    def trouble(self) -> str:
        """Why one of them does not serve; empty while all do."""
        ...

    def workers_changed(self) -> None:
        """Sends the table at once."""
        ...

    async def start(self) -> None:
        """Begins; afterwards they know the workers, or will as soon as they live."""
        ...

    async def supervise(self) -> None:
        """Watches them for ever. After `start`."""
        ...

    async def stop(self, timeout_s: float) -> None:
        """Ends what was started here: in good order for so long, then by force. Again: nothing happens."""
        ...

    def clean_up(self) -> None:
        """Removes files that were made here."""
        ...


class TablePush:
    """Sends the table of workers to routers, under versions that only grow.

    Args:
        workers: the table, asked for at each push.
    """

    def __init__(self, workers: Callable[[], Sequence[worker_pb2.WorkerInfo]]) -> None:
        self._workers = workers
        self._version = 0

    async def push(self, stub: router_pb2_grpc.RouterAdminStub) -> None:
        """Sends it. Raises grpc.aio.AioRpcError."""
        # Wall clock: a later supervisor's tables must win over an earlier one's.
        self._version = max(self._version + 1, time.time_ns())
        table = router_pb2.WorkerTable(version=self._version, workers=self._workers())
        await stub.SetWorkers(table, timeout=PUSH_TIMEOUT_S)

    async def heard_from_all(self, stub: router_pb2_grpc.RouterAdminStub) -> bool:
        """Sends it and asks whether the router hears from every worker. Raises grpc.aio.AioRpcError."""
        await self.push(stub)
        status = await stub.Status(router_pb2.StatusRequest(), timeout=PUSH_TIMEOUT_S)
        return len(status.workers) == len(self._workers()) and all(w.healthy for w in status.workers)
