"""One worker under supervision: started, watched over its heartbeats, killed when it hangs, started anew."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import grpc
import ray.exceptions

from cluster.actors import ActorProcess, StartedWorker
from cluster.backoff import Backoff
from cluster.plan import WorkerPlan
from cluster.processes import ProcessId
from cluster.ray_runtime import RayRuntime
from cluster.silence import Silence
from cluster.spec import HealthSpec
from kvrelay.v1 import worker_pb2, worker_pb2_grpc
from telemetry.logs import fields

logger = logging.getLogger(__name__)

_RETRY_S = 0.2
_KILL_S = 10.0
# After so many failures in a row a deployment that is starting gives up.
_START_ATTEMPTS = 3


class WorkerStartError(Exception):
    """The worker did not start; the message is the reason it gave.

    `final` says that another try would fail in the same way.
    """

    def __init__(self, message: str, final: bool) -> None:
        super().__init__(message)
        self.final = final


class ManagedWorker:
    """Keeps one worker running until its task is cancelled.

    Args:
        plan: the worker.
        runtime: where its actor lives.
        health: bounds.
        on_change: called after `info` or `trouble` has changed.

    Attributes:
        info: of the process that serves now; None while there is none.
        started: the same process, for signals.
        trouble: why there is none, in words; empty while it serves.
        restarts: processes that came after the first.
    """

    def __init__(
        self, plan: WorkerPlan, runtime: RayRuntime, health: HealthSpec, on_change: Callable[[], None]
    ) -> None:
        self.plan = plan
        self.info: worker_pb2.WorkerInfo | None = None
        self.started: StartedWorker | None = None
        self.trouble = "starting"
        self.restarts = 0
        self._runtime = runtime
        self._health = health
        self._on_change = on_change
        self._backoff = Backoff()
        self._actor: Any = None
        # Processes of the actor that must not be asked again: the last that served, or hung.
        self._done_with: ProcessId | None = None

    async def start(self) -> None:
        """First start. Raises WorkerStartError, RayError."""
        self._actor = self._runtime.create_worker(self.plan)
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._serves(await self._start_actor())
                return
            except WorkerStartError as error:
                if error.final or attempt == _START_ATTEMPTS:
                    raise
                self._stopped(str(error))
                await asyncio.sleep(self._backoff.failed())

    async def supervise(self) -> None:
        """Watches and restarts, for ever. After `start`."""
        while True:
            if self.started is not None:
                reason = await self._watch(self.started)
                self._stopped(reason)
                await self._end(self.started)
                # Told after the routers: Ray may take a moment to know.
                if cause := await self._runtime.cause_of_end(self.started.node_id, self.started.process):
                    self._stopped(f"{reason}: {cause}")
                self.started = None
            await asyncio.sleep(self._backoff.failed())
            try:
                self._serves(await self._start_actor())
                self.restarts += 1
            except WorkerStartError as error:
                self._stopped(f"does not start ({self._backoff.failures} failures in a row): {error}")

    async def drain(self, timeout_s: float) -> None:
        """Lets running requests end, for at most so long."""
        if self._actor is None:
            return
        try:
            await asyncio.wait_for(self._actor.drain.remote(timeout_s), timeout_s + 1.0)
        except (TimeoutError, ray.exceptions.RayError) as error:
            logger.warning("drain failed", extra=fields(worker=self.plan.worker_id, reason=str(error)))

    async def stop(self, timeout_s: float) -> None:
        """Ends the worker in good order, or with SIGKILL when that takes too long."""
        if self._actor is None:
            return
        try:
            await asyncio.wait_for(self._actor.stop.remote(), timeout_s)
        except (TimeoutError, ray.exceptions.RayError):
            if self.started is not None:
                await self._end(self.started)

    def _serves(self, started: StartedWorker) -> None:
        self.started = started
        self._done_with = started.process
        self.info = worker_pb2.WorkerInfo.FromString(started.info)
        self.trouble = ""
        self._runtime.prepare_agent(started.node_id)
        logger.info(
            "worker serves",
            extra=fields(
                worker=self.plan.worker_id, pid=started.process.pid, incarnation=self.info.incarnation
            ),
        )
        self._on_change()

    def _stopped(self, reason: str) -> None:
        self.info = None
        self.trouble = reason
        logger.warning("worker lost", extra=fields(worker=self.plan.worker_id, reason=reason))
        self._on_change()

    async def _start_actor(self) -> StartedWorker:
        """Waits for Ray to have a new process for the actor, then for the worker to serve."""
        bound_s = self._health.start_timeout_s
        began_unix_s = time.time()
        bearer: ActorProcess | None = None
        try:
            async with asyncio.timeout(bound_s):
                bearer = await self._await_process()
                started: StartedWorker = await self._actor.start.remote()
                return started
        except TimeoutError:
            await self._replace(bearer)
            # Killed before it could say who it is, a process is one of many.
            cause = "" if bearer else await self._runtime.latest_kill(began_unix_s)
            reason = ": ".join(filter(None, [f"did not start within {bound_s:g} s", cause]))
            raise WorkerStartError(reason, final=False) from None
        except ray.exceptions.RayTaskError as error:
            # Its own error, not a lost process: the reason is the user's to read, without a trace.
            raise WorkerStartError(_reason(error), final=True) from error
        except ray.exceptions.RayActorError as error:
            cause = await self._runtime.cause_of_end(bearer.node_id, bearer.process) if bearer else ""
            ended = f"the process ended while it started: {cause or _first_line(error)}"
            raise WorkerStartError(ended, final=False) from error
        except ray.exceptions.RayError as error:
            raise WorkerStartError(_first_line(error), final=False) from error

    async def _replace(self, bearer: ActorProcess | None) -> None:
        """Ends the process whose start hangs: asked again it would only go on hanging.

        One that never said who it is cannot be signalled; Ray knows it all the same.
        """
        if bearer is None:
            self._runtime.restart(self._actor)
            return
        self._done_with = bearer.process
        await self._end(bearer)

    async def _await_process(self) -> ActorProcess:
        """Returns once a process bears the actor that is not done with.

        One in which the worker failed to start is asked again: Ray has no reason to replace it.
        """
        while True:
            try:
                bearer: ActorProcess = await self._actor.process.remote()
                if self._done_with != bearer.process:
                    return bearer
                # Ray has not noticed yet that this process is gone.
            except ray.exceptions.ActorUnavailableError:
                # Ray is restarting it.
                pass
            except ray.exceptions.ActorDiedError:
                # For good: killed by hand, or its node is gone for ever.
                self._actor = self._runtime.create_worker(self.plan)
            await asyncio.sleep(_RETRY_S)

    async def _watch(self, started: StartedWorker) -> str:
        """Returns the reason once this process must no longer be used."""
        info = worker_pb2.WorkerInfo.FromString(started.info)
        silence = Silence(self._health.silence_s)
        while True:
            async with grpc.aio.insecure_channel(info.endpoint) as channel:
                reason = await self._watch_channel(channel, info, silence)
            if reason:
                return reason
            if not await self._process_lives(started):
                return "the process ended"
            if silence.too_long:
                return f"no report for {self._health.silence_s:g} s"
            await silence.sleep(_RETRY_S)

    async def _watch_channel(
        self, channel: grpc.aio.Channel, info: worker_pb2.WorkerInfo, silence: Silence
    ) -> str:
        """Empty: the stream broke, which says nothing yet about the process."""
        request = worker_pb2.WatchRequest(interval_ms=round(self._health.heartbeat_s * 1000))
        reports = worker_pb2_grpc.WorkerStub(channel).Watch(request, wait_for_ready=False)
        while True:
            reading = asyncio.ensure_future(reports.read())
            try:
                while not reading.done() and not silence.too_long:
                    await silence.wait(reading)
                if not reading.done():
                    return f"no report for {self._health.silence_s:g} s"
                report = reading.result()
            except grpc.aio.AioRpcError:
                return ""
            finally:
                reading.cancel()
            if not isinstance(report, worker_pb2.WorkerReport):
                return ""
            silence.heard()
            if report.incarnation != info.incarnation:
                return "another process answers at its address"
            busy = report.stats.running + report.stats.waiting > 0
            if busy and report.engine_silent_s > self._health.engine_silence_s:
                return f"its engine made no step for {report.engine_silent_s:.0f} s with requests running"

    async def _process_lives(self, started: StartedWorker) -> bool:
        try:
            return await asyncio.wait_for(
                self._runtime.is_alive(started.node_id, started.process), self._health.silence_s
            )
        except (TimeoutError, ray.exceptions.RayError):
            # The node does not answer: silence decides.
            return True

    async def _end(self, bearer: ActorProcess | StartedWorker) -> None:
        """A process that hangs holds its peers' reads open; only its end settles them."""
        try:
            await asyncio.wait_for(self._runtime.kill(bearer.node_id, bearer.process), _KILL_S)
        except (TimeoutError, ray.exceptions.RayError) as error:
            logger.warning("kill failed", extra=fields(worker=self.plan.worker_id, reason=str(error)))


def _reason(error: ray.exceptions.RayTaskError) -> str:
    cause = error.cause
    return str(cause) if isinstance(cause, Exception) and str(cause) else _last_line(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
