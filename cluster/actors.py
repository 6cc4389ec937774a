"""The Ray actors. Each holds one worker with its gRPC server; Ray places, names and restarts them.

An actor does nothing until `start` is called, so that a worker that cannot start fails that call with its
reason, and the supervisor, not Ray, decides when to try again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pkgutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import ray.util

from cluster.cores import usable_cores
from cluster.plan import DECODE, PREFILL, WorkerPlan
from cluster.processes import ProcessId, identify
from cluster.worker_environment import prepare_worker_process
from kvrelay.v1 import worker_pb2
from telemetry import logs
from worker.collector import settle_collector
from worker.config import WorkerConfig

logger = logging.getLogger(__name__)

# By name: they pull in torch, for which the supervisor, that must know the actor classes, has no use.
_SERVICES = {PREFILL: "prefill_worker.worker:PrefillWorker", DECODE: "decode_worker.worker:DecodeWorker"}


class WorkerService(Protocol):
    """What both roles' workers have."""

    async def start(self) -> worker_pb2.WorkerInfo:
        """Loads and serves."""
        ...

    @property
    def failed(self) -> asyncio.Future[BaseException]:
        """Done once the engine has died."""
        ...

    async def drain(self, timeout_s: float) -> int:
        """Stops admission and waits; returns the requests that are left."""
        ...

    async def stop(self) -> None:
        """Stops serving."""
        ...


@dataclass(frozen=True, slots=True)
class ActorProcess:
    """The process that bears an actor, and its Ray node."""

    process: ProcessId
    node_id: str


@dataclass(frozen=True, slots=True)
class StartedWorker:
    """What `start` answers: the worker's description (a serialised WorkerInfo), process and Ray node."""

    info: bytes
    process: ProcessId
    node_id: str


class WorkerActor:
    """One worker process.

    Args:
        plan: what it is to be; the same after a restart.
    """

    def __init__(self, plan: WorkerPlan) -> None:
        if plan.log_path is not None:
            _write_output_to(plan.log_path)
        self._plan = plan
        self._service: WorkerService | None = None
        self._started: StartedWorker | None = None
        self._watch: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return self._plan.actor_name

    async def process(self) -> ActorProcess:
        """The process that bears the actor now."""
        process = identify(os.getpid())
        if process is None:
            raise RuntimeError("cannot read /proc of this process")
        return ActorProcess(process, ray.get_runtime_context().get_node_id())

    async def start(self) -> StartedWorker:
        """Loads the model and serves. Again: the same answer. After a failure: another try."""
        if self._started is not None:
            return self._started
        plan = self._plan
        logs.configure(plan.worker_id, plan.log_level, plan.log_format)
        if self._service is not None:
            await self._service.stop()
        bearer = await self.process()
        threads = plan.engine.threads or usable_cores()
        prepare_worker_process(threads)
        make: Callable[[WorkerConfig], WorkerService] = pkgutil.resolve_name(_SERVICES[plan.role])
        self._service = make(
            WorkerConfig(
                worker_id=plan.worker_id,
                incarnation=time.time_ns(),
                node_id=bearer.node_id,
                model_name=plan.model_name,
                engine=replace(plan.engine, threads=threads),
                decodes=plan.role == DECODE,
                host=plan.host or self._node_address(),
                redis_url=plan.redis_url,
                index_namespace=plan.deployment,
                max_queue=plan.max_queue,
                heartbeat_s=plan.heartbeat_s,
            )
        )
        info = await self._service.start()
        settle_collector()
        self._watch = asyncio.create_task(self._end_with_engine(self._service))
        self._started = StartedWorker(info.SerializeToString(), bearer.process, bearer.node_id)
        return self._started

    async def drain(self, timeout_s: float) -> int:
        """Stops admission; waits for the last request. Returns the requests that are left."""
        return 0 if self._service is None else await self._service.drain(timeout_s)

    async def stop(self) -> None:
        """Ends what is left and stops serving; the process stays for Ray to end."""
        if self._watch is not None:
            self._watch.cancel()
        if self._service is not None:
            await self._service.stop()

    @staticmethod
    def _node_address() -> str:
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return address

    async def _end_with_engine(self, service: WorkerService) -> None:
        error = await asyncio.shield(service.failed)
        logger.error("engine died; ending the process", exc_info=error)
        logging.shutdown()
        # Not exit_actor(): Ray restarts only what ended unasked.
        os._exit(1)


def _write_output_to(path: Path) -> None:
    """From now on: what libraries and a dying interpreter print too, not our own log lines alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)


class PrefillActor(WorkerActor):
    """A prefill worker; the class name is what the dashboard shows."""


class DecodeActor(WorkerActor):
    """A decode worker; the class name is what the dashboard shows."""


ACTOR_CLASSES: dict[str, type[WorkerActor]] = {PREFILL: PrefillActor, DECODE: DecodeActor}
