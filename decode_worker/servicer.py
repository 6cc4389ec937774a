"""The Decode service: sessions of routers over the table of requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import grpc

from decode_worker.channels import PrefillChannels
from decode_worker.gathering import Gathering
from decode_worker.handover import HandoverTools
from decode_worker.request_table import RequestTable
from decode_worker.room import Room
from decode_worker.session import RouterSession
from engine.api import StepOutput
from kv_transfer.quarantine import Quarantine
from kv_transfer.reader import KvReader
from kvrelay.v1 import decode_pb2, decode_pb2_grpc
from telemetry.logs import fields
from worker.liveness import SilenceTimer
from worker.runtime import RoleCounts, WorkerRuntime
from worker.tasks import end_task

logger = logging.getLogger(__name__)

# Share of the pool in quarantine beyond which the worker is of no use and is to be restarted.
_MAX_QUARANTINED_SHARE = 0.5
_QUARANTINE_CHECK_S = 0.5
# How long its other requests may go on before that.
_QUARANTINE_DRAIN_S = 30.0

_Commands = AsyncIterator[decode_pb2.DecodeCommand]
_SessionContext = grpc.aio.ServicerContext[decode_pb2.DecodeCommand, decode_pb2.DecodeEvents]


class DecodeServicer(decode_pb2_grpc.DecodeServicer):
    """Session, and what the engine and the quarantine have to say. Lives in one event loop."""

    def __init__(self, runtime: WorkerRuntime) -> None:
        config = runtime.config
        self._runtime = runtime
        self._config = config
        self._quarantine = Quarantine(alarm_s=config.quarantine_alarm_s, clock=time.monotonic)
        self._readers = {
            name: KvReader(
                transport,
                read_timeout_s=config.read_timeout_s,
                chunk_blocks=config.read_chunk_blocks,
                quarantine=self._quarantine,
                on_settled=self._settled,
            )
            for name, transport in runtime.transports.items()
        }
        self._channels = PrefillChannels()
        self._room = Room(runtime.host)
        gathering = Gathering()
        runtime.host.pace_by(gathering)
        self._requests = RequestTable(
            HandoverTools(runtime, self._channels, self._readers, self._room, gathering)
        )
        self._sessions: dict[str, RouterSession] = {}
        self._watch = runtime.spawn(self._watch_quarantine())

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the service to a server."""
        decode_pb2_grpc.add_DecodeServicer_to_server(self, server)

    # What the rest of the worker says and asks.

    def on_step(self, output: StepOutput) -> None:
        """Gives one step's tokens to their requests, and room to those who wait for it."""
        self._requests.on_step(output)
        self._room.stepped()

    def fail_all(self, reason: str) -> None:
        """Ends every request with an error."""
        self._requests.fail_all(reason)

    def counts(self) -> RoleCounts:
        """Handovers and what they read."""
        return RoleCounts(
            leases=self._requests.num_handovers,
            quarantine_age_s=self._quarantine.oldest_s,
            transfer_bytes=self._requests.transfer_bytes,
            transfer_seconds=self._requests.transfer_seconds,
        )

    async def close(self) -> None:
        """Ends sessions, handovers and readers."""
        for session in self._sessions.values():
            session.stop_grace()
        await self._requests.close()
        await end_task(self._watch)
        for reader in self._readers.values():
            await reader.close()
        await self._channels.close()

    # The RPC; its name is the .proto file's.

    async def Session(  # noqa: N802
        self, commands: _Commands, context: _SessionContext
    ) -> AsyncIterator[decode_pb2.DecodeEvents]:
        """One router's requests, both ways."""
        session = self._session_of(await self._read_hello(commands, context))
        stream = session.open_stream()
        timer = SilenceTimer(self._config.heartbeat_timeout_s, lambda: session.close_stream(stream))
        listener = asyncio.create_task(self._listen(session, stream, commands, timer))
        try:
            async for events in session.events(
                stream, self._config.heartbeat_s, lambda: self._runtime.host.steps
            ):
                yield events
        finally:
            timer.stop()
            session.close_stream(stream)
            await end_task(listener)

    async def _read_hello(self, commands: _Commands, context: _SessionContext) -> str:
        try:
            async with asyncio.timeout(self._config.heartbeat_timeout_s):
                first = await anext(commands, None)
        except TimeoutError:
            first = None
        if first is None or not first.hello.router_id:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first command must be Hello")
            raise AssertionError("abort raises")
        return first.hello.router_id

    def _session_of(self, router_id: str) -> RouterSession:
        session = self._sessions.get(router_id)
        if session is None:
            config = self._config
            # A break is noticed soon after the time-out, and the router has the grace to come back.
            keep_s = 2 * config.heartbeat_timeout_s + config.session_grace_s
            session = RouterSession(router_id, config.session_grace_s, keep_s, self._router_lost)
            self._sessions[router_id] = session
        return session

    def _router_lost(self, session: RouterSession) -> None:
        logger.warning("router lost", extra=fields(router_id=session.router_id))
        self._requests.abandon(session)
        if self._sessions.get(session.router_id) is session:
            del self._sessions[session.router_id]

    async def _listen(
        self, session: RouterSession, stream: int, commands: _Commands, timer: SilenceTimer
    ) -> None:
        try:
            async for command in commands:
                timer.heard()
                match command.WhichOneof("message"):
                    case "submit":
                        self._requests.submit(session, command.submit)
                    case "cancel":
                        self._requests.cancel(command.cancel)
        finally:
            session.close_stream(stream)

    # The quarantine.

    def _settled(self, blocks: tuple[int, ...]) -> None:
        self._runtime.host.post(lambda engine: engine.settle(blocks))

    async def _watch_quarantine(self) -> None:
        """Drains and then fails the worker, once too much of the pool is lost: a new process has it all."""
        share = 0.0
        while share <= _MAX_QUARANTINED_SHARE:
            await asyncio.sleep(_QUARANTINE_CHECK_S)
            share = len(self._quarantine.blocks) / self._runtime.host.stats.blocks_total
        reason = f"{share:.0%} of the KV pool is in quarantine"
        logger.critical(reason, extra=fields(worker_id=self._config.worker_id))
        self._runtime.admission.close(reason)
        await self._runtime.set_serving(False)
        await self._runtime.admission.wait_empty(_QUARANTINE_DRAIN_S)
        raise RuntimeError(reason)
