"""One worker process around its role: engine, transports, server, health, metrics, index publisher.

What belongs here is what both roles have and neither decides. A role brings a `RoleService` and its own
gRPC service.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from engine.api import StepOutput
from kv_transfer.identity import fingerprint
from kv_transfer.transports.base import Transport
from kv_transfer.types import Identity, KvLayout
from kv_transfer.wire import identity_to_wire, layout_to_wire
from kvrelay.v1 import worker_pb2, worker_pb2_grpc
from prefix_index.publisher import RedisIndexPublisher
from telemetry.logs import fields
from worker.admission import Admission
from worker.assembly import Assembly
from worker.config import WorkerConfig
from worker.grammars import Grammars
from worker.host import EngineHost
from worker.metrics import WorkerMetrics, WorkerSnapshot
from worker.servicer import WorkerServicer

logger = logging.getLogger(__name__)

# Token ids of a long prompt, and a whole context's block ids, fit with room to spare.
_MAX_MESSAGE_BYTES = 64 << 20
_SERVER_OPTIONS = (
    # Two servers on one port would share its connections without a word.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
)
_STOP_GRACE_S = 0.5
_SCRAPE_TIMEOUT_S = 5.0
_FAREWELL_S = 0.2

_ROLE_NAMES = {worker_pb2.WORKER_ROLE_PREFILL: "prefill", worker_pb2.WORKER_ROLE_DECODE: "decode"}


@dataclass(frozen=True, slots=True)
class RoleCounts:
    """What a role adds to reports and metrics. See `worker.metrics.WorkerSnapshot`."""

    leases: int = 0
    quarantine_age_s: float = 0.0
    transfer_bytes: int = 0
    transfer_seconds: float = 0.0


class RoleService(Protocol):
    """What a role does with the engine's news. Called in the event loop."""

    def on_step(self, output: StepOutput) -> None:
        """One step's tokens, progress and failures."""
        ...

    def fail_all(self, reason: str) -> None:
        """Ends every request with an error: the engine has failed."""
        ...

    def counts(self) -> RoleCounts:
        """Current counts."""
        ...

    async def close(self) -> None:
        """Stops the role's own tasks."""
        ...


class WorkerRuntime:
    """Everything of one worker but its role. Lives in the event loop that makes it.

    Attributes:
        config: as given.
        identity: what peers must share.
        fingerprint: digest of the identity.
        layout: of the own pool.
        transports: name -> transport with the pool registered, best first.
        admission: who is inside.
        grammars: compiles those of requests that come in.
        metrics: counters to raise.
        host: the engine.
        endpoint: host:port of the gRPC server; set by `serve`.
        info: what Describe answers; set by `serve`.
        failed: done once the engine's thread, or something else that all requests need, has died, with its
            error. The process is then to end.
    """

    def __init__(self, config: WorkerConfig, role: worker_pb2.WorkerRole, assembly: Assembly) -> None:
        self.config = config
        self.identity: Identity = assembly.identity
        self.fingerprint = fingerprint(assembly.identity)
        self.layout: KvLayout = assembly.layout
        self.transports: Mapping[str, Transport] = assembly.transports
        self.admission = Admission(config.max_queue, assembly.max_context_tokens)
        self.grammars = Grammars(assembly.grammars, config.max_queue)
        self.metrics = WorkerMetrics(config.worker_id, _ROLE_NAMES[role], self._snapshot_from_thread)
        self._events = asyncio.get_running_loop()
        self.host = EngineHost(assembly.engine, self._on_step, self._on_failure)
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.endpoint = ""
        self.info = worker_pb2.WorkerInfo()
        self._role = role
        self._assembly = assembly
        self._service: RoleService | None = None
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._publisher: RedisIndexPublisher | None = None
        self._failing = False
        self._background: set[asyncio.Task[None]] = set()

    async def serve(self, service: RoleService, register: Callable[[grpc.aio.Server], None]) -> None:
        """Starts engine, server, metrics and publisher.

        Args:
            service: the role.
            register: adds the role's gRPC service to the server.
        """
        config = self.config
        self._service = service
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        port = server.add_insecure_port(f"{config.host}:0")
        self.endpoint = f"{config.host}:{port}"
        self.info = worker_pb2.WorkerInfo(
            worker_id=config.worker_id,
            incarnation=config.incarnation,
            role=self._role,
            endpoint=self.endpoint,
            pid=os.getpid(),
            node_id=config.node_id,
            identity=identity_to_wire(self.identity),
            layout=layout_to_wire(self.layout),
            num_blocks=self.host.stats.blocks_total,
            max_model_len=self._assembly.max_model_len,
            model_context_tokens=self._assembly.model_context_tokens,
            draft_methods=self._assembly.draft_methods,
            metrics_url=self.metrics.serve(config.host),
        )
        servicer = WorkerServicer(self.info, self.report, self.drain, config.heartbeat_s)
        worker_pb2_grpc.add_WorkerServicer_to_server(servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        register(server)
        self.host.start()
        await server.start()
        self._server = server
        await self.set_serving(True)
        if config.redis_url:
            self._publisher = RedisIndexPublisher(
                config.redis_url,
                config.index_namespace,
                config.worker_id,
                config.incarnation,
                self._cached_block_hashes,
            )
            await self._publisher.start()
        logger.info("worker serves", extra=fields(worker_id=config.worker_id, endpoint=self.endpoint))

    async def set_serving(self, serving: bool) -> None:
        """What grpc.health.v1 answers."""
        status = health_pb2.HealthCheckResponse
        await self._health.set("", status.SERVING if serving else status.NOT_SERVING)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Runs something that must not end by an error: if it does, the worker has failed."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_ended)
        return task

    def report(self) -> worker_pb2.WorkerReport:
        """One report of this moment."""
        now = self._snapshot()
        engine = now.engine
        return worker_pb2.WorkerReport(
            worker_id=self.config.worker_id,
            incarnation=self.config.incarnation,
            steps=now.steps,
            engine_silent_s=self.host.silent_s,
            draining=now.draining,
            stats=worker_pb2.WorkerStats(
                running=engine.running,
                waiting=engine.waiting,
                queued_prefill_tokens=engine.queued_prefill_tokens,
                blocks_total=engine.blocks_total,
                blocks_free=engine.blocks_free,
                blocks_cached=engine.blocks_cached,
                blocks_pinned=engine.blocks_pinned,
                blocks_quarantined=engine.blocks_quarantined,
                leases=now.leases,
                prompt_tokens_total=engine.prompt_tokens_total,
                cached_tokens_total=engine.cached_tokens_total,
                generated_tokens_total=engine.generated_tokens_total,
                preemptions_total=engine.preemptions_total,
                swaps_total=engine.swaps_total,
                swap_blocks_total=engine.swap_blocks_total,
                swap_blocks_used=engine.swap_blocks_used,
                swapped_out_blocks_total=engine.swapped_out_blocks_total,
                swapped_in_blocks_total=engine.swapped_in_blocks_total,
                transfer_bytes_total=now.transfer_bytes,
                transfer_seconds_total=now.transfer_seconds,
            ),
        )

    async def drain(self, timeout_s: float) -> int:
        """Stops admission; waits until nobody is inside. Returns the requests left."""
        self.admission.close("draining")
        await self.set_serving(False)
        return await self.admission.wait_empty(timeout_s)

    async def stop(self) -> None:
        """Ends everything that `serve` started. The pool's memory stays while the process lives."""
        self.admission.close("stopped")
        if self._publisher is not None:
            await self._publisher.close()
        if self._service is not None:
            self._service.fail_all("the worker stops")
            await self._service.close()
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_S)
        await self.host.stop()
        self.grammars.close()
        for transport in self.transports.values():
            transport.close()
        await asyncio.to_thread(self.metrics.stop)

    def _snapshot_from_thread(self) -> WorkerSnapshot:
        """For the metrics' own thread. Raises TimeoutError where the event loop does not answer."""

        async def take() -> WorkerSnapshot:
            return self._snapshot()

        return asyncio.run_coroutine_threadsafe(take(), self._events).result(_SCRAPE_TIMEOUT_S)

    def _snapshot(self) -> WorkerSnapshot:
        counts = self._service.counts() if self._service is not None else RoleCounts()
        return WorkerSnapshot(
            engine=self.host.stats,
            steps=self.host.steps,
            inside=self.admission.num_inside,
            leases=counts.leases,
            quarantine_age_s=counts.quarantine_age_s,
            transfer_bytes=counts.transfer_bytes,
            transfer_seconds=counts.transfer_seconds,
            draining=self.admission.draining,
        )

    async def _cached_block_hashes(self) -> list[bytes]:
        return await self.host.call(lambda engine: engine.cached_block_hashes())

    def _on_step(self, output: StepOutput) -> None:
        try:
            self.metrics.observe_step(output)
            if self._service is not None:
                self._service.on_step(output)
            events = output.cache_events
            if self._publisher is not None and (events.stored or events.evicted):
                self._publisher.publish(events.stored, events.evicted)
        # The step's tokens would be missing for ever: better that the process is replaced.
        except Exception as error:
            self._on_failure(error)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    def _on_failure(self, error: BaseException) -> None:
        if self._failing:
            return
        self._failing = True
        reason = f"the worker has failed: {error!r}"
        logger.critical(reason, exc_info=error, extra=fields(worker_id=self.config.worker_id))
        self.admission.close(reason)
        if self._service is not None:
            self._service.fail_all(reason)
        self.spawn(self._tell_failure(error))

    async def _tell_failure(self, error: BaseException) -> None:
        await self.set_serving(False)
        # Whoever waits for `failed` ends the process: first the last messages go out.
        await asyncio.sleep(_FAREWELL_S)
        self.failed.set_result(error)
