"""The Prefill service: admission, tickets and leases around an engine that only prefills.

The states of a ticket are `kv_transfer.tickets`'; this file gives them their streams, their clock and
their blocks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import AsyncIterator

import grpc

from engine.api import EngineRequest, StepOutput
from engine.grammar.base import CompiledGrammar
from kv_transfer import registry, wire
from kv_transfer.identity import require_same, require_same_layout, without_draft
from kv_transfer.tickets import EndedTicket, EndReason, TicketGoneError, TicketTable
from kv_transfer.types import (
    IdentityMismatchError,
    KvTicket,
    LayoutMismatchError,
    NoCommonTransportError,
)
from kvrelay.v1 import prefill_pb2, prefill_pb2_grpc
from prefill_worker.held_prefill import Follower, HeldPrefill
from telemetry.logs import fields
from worker.admission import Refusal, RefusedError
from worker.requests import at_deadline, engine_request
from worker.runtime import RoleCounts, WorkerRuntime
from worker.tasks import end_task

logger = logging.getLogger(__name__)

_STATUS_OF = {
    Refusal.DRAINING: grpc.StatusCode.UNAVAILABLE,
    Refusal.STALE_ATTEMPT: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Refusal.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
# How often the ticket table's clock is looked at.
_TICK_S = 0.05

_Requests = AsyncIterator[prefill_pb2.FollowRequest]
_FollowContext = grpc.aio.ServicerContext[prefill_pb2.FollowRequest, prefill_pb2.FollowEvent]


class PrefillServicer(prefill_pb2_grpc.PrefillServicer):
    """Start, Follow and Release. Lives in one event loop."""

    def __init__(self, runtime: WorkerRuntime) -> None:
        config = runtime.config
        self._runtime = runtime
        self._config = config
        self._tickets = TicketTable(
            ttl_s=config.ticket_ttl_s,
            grace_s=config.reattach_grace_s,
            silence_s=config.heartbeat_timeout_s,
            clock=time.monotonic,
            on_end=self._ended,
        )
        self._prefills: dict[str, HeldPrefill] = {}
        self._by_engine_id: dict[str, HeldPrefill] = {}
        self._by_request: dict[str, HeldPrefill] = {}
        self._clock = runtime.spawn(self._watch_clock())

    def counts(self) -> RoleCounts:
        """Tickets alive."""
        return RoleCounts(leases=len(self._tickets))

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the service to a server."""
        prefill_pb2_grpc.add_PrefillServicer_to_server(self, server)

    # What the engine says.

    def on_step(self, output: StepOutput) -> None:
        """Passes one step's progress on to the followers."""
        for ready in output.kv_ready:
            if (prefill := self._by_engine_id.get(ready.request_id)) is not None:
                prefill.ready(ready)
        for token in output.tokens:
            if (prefill := self._by_engine_id.get(token.request_id)) is not None:
                prefill.first_token(token)
        for done in output.prefills_done:
            if (prefill := self._by_engine_id.get(done.request_id)) is not None:
                prefill.done(done)
        for failure in output.failures:
            if (prefill := self._by_engine_id.get(failure.request_id)) is not None:
                # The input made the model fail: the next worker would fail in the same way.
                self._revoke(prefill, failure.message, retryable=False)

    def fail_all(self, reason: str) -> None:
        """Ends every ticket: the engine has failed."""
        for prefill in list(self._prefills.values()):
            self._revoke(prefill, reason, retryable=True)

    async def close(self) -> None:
        """Stops the tickets' clock."""
        await end_task(self._clock)

    # The RPCs; their names are the .proto file's.

    async def Start(  # noqa: N802
        self,
        request: prefill_pb2.StartRequest,
        context: grpc.aio.ServicerContext[prefill_pb2.StartRequest, prefill_pb2.StartResponse],
    ) -> prefill_pb2.StartResponse:
        """Admits a request and answers with its ticket, before computing.

        The same attempt started twice gets the same ticket; a later attempt ends the ticket of the one
        before.
        """
        work = request.request
        sequence = engine_request(work)
        try:
            # First of all: who is known, and who may come in, can change meanwhile.
            grammar = await self._runtime.grammars.compiled(sequence)
        except RefusedError as refused:
            self._runtime.metrics.refused(refused.refusal)
            await context.abort(_STATUS_OF[refused.refusal], str(refused))
        known = self._by_request.get(work.request_id)
        if known is not None and known.attempt == work.attempt:
            return prefill_pb2.StartResponse(ticket=wire.ticket_to_wire(known.ticket))
        ticket_id = uuid.uuid4().hex
        if known is not None and known.attempt < work.attempt:
            # First, for it gives up its place.
            self._revoke(known, f"attempt {work.attempt} took its place", retryable=False)
        try:
            self._runtime.admission.admit(ticket_id, work.request_id, work.attempt, sequence)
        except RefusedError as refused:
            self._runtime.metrics.refused(refused.refusal)
            await context.abort(_STATUS_OF[refused.refusal], str(refused))
        prefill = self._open(ticket_id, work.request_id, work.attempt, sequence, grammar)
        prefill.deadline = at_deadline(work.deadline_unix_ms, lambda: self._deadline_passed(prefill))
        logger.info("ticket", extra=fields(request_id=work.request_id, ticket_id=ticket_id))
        return prefill_pb2.StartResponse(ticket=wire.ticket_to_wire(prefill.ticket))

    async def Follow(  # noqa: N802
        self, requests: _Requests, context: _FollowContext
    ) -> AsyncIterator[prefill_pb2.FollowEvent]:
        """One lease: what is ready goes out, Validate, Done, Abandon and heartbeats come in."""
        attach = await self._read_attach(requests, context)
        transport = await self._handshake(attach, context)
        try:
            generation = self._tickets.attach(attach.ticket_id)
        except TicketGoneError as gone:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(gone))
        follower = Follower(generation)
        self._prefills[attach.ticket_id].follow(
            follower,
            prefill_pb2.Attached(
                generation=generation,
                identity=wire.identity_to_wire(self._runtime.identity),
                layout=wire.layout_to_wire(self._runtime.layout),
                transport=transport,
                pool=self._runtime.transports[transport].export(),
                pid=os.getpid(),
            ),
        )
        listener = asyncio.create_task(self._listen(attach.ticket_id, follower, requests))
        try:
            async for event in follower.events(self._config.heartbeat_s, lambda: self._runtime.host.steps):
                yield event
        finally:
            # No effect where the ticket has ended or another follower came.
            self._tickets.detach(attach.ticket_id, generation)
            await end_task(listener)

    async def Release(  # noqa: N802
        self,
        request: prefill_pb2.ReleaseRequest,
        context: grpc.aio.ServicerContext[prefill_pb2.ReleaseRequest, prefill_pb2.ReleaseResponse],
    ) -> prefill_pb2.ReleaseResponse:
        """The router has no use for the ticket; whoever still follows it is told."""
        prefill = self._prefills.get(request.ticket_id)
        if prefill is not None and request.incarnation == self._config.incarnation:
            prefill.revoked = prefill_pb2.Revoked(reason="released by the router", retryable=False)
            self._tickets.release(request.ticket_id)
        return prefill_pb2.ReleaseResponse()

    # A ticket's way.

    def _open(
        self,
        ticket_id: str,
        request_id: str,
        attempt: int,
        sequence: EngineRequest,
        grammar: CompiledGrammar | None,
    ) -> HeldPrefill:
        ticket = KvTicket(
            ticket_id=ticket_id,
            worker_id=self._config.worker_id,
            incarnation=self._config.incarnation,
            endpoint=self._runtime.endpoint,
            fingerprint=self._runtime.fingerprint,
            layout=self._runtime.layout,
            num_tokens=sequence.num_context_tokens,
            ttl_ms=int(self._config.ticket_ttl_s * 1000),
        )
        prefill = HeldPrefill(ticket, request_id, attempt, sequence.request_id, grammar)
        self._tickets.issue(ticket_id)
        self._prefills[ticket_id] = prefill
        self._by_engine_id[prefill.engine_id] = prefill
        self._by_request[request_id] = prefill
        # Not waited for: the engine may be in the middle of a long step.
        self._runtime.host.post(
            lambda engine: engine.submit_prefill(sequence),
            lambda error: self._revoke(prefill, str(error), retryable=not isinstance(error, ValueError)),
        )
        return prefill

    def _revoke(self, prefill: HeldPrefill, reason: str, retryable: bool) -> None:
        prefill.revoked = prefill_pb2.Revoked(reason=reason, retryable=retryable)
        self._tickets.revoke(prefill.ticket.ticket_id)

    def _deadline_passed(self, prefill: HeldPrefill) -> None:
        # A follower knows the deadline too; it gets a moment to abandon and to report it as what it is.
        grace_s = self._config.heartbeat_s if prefill.follower is not None else 0.0
        prefill.deadline = asyncio.get_running_loop().call_later(
            grace_s, lambda: self._revoke(prefill, "the request's deadline passed", retryable=False)
        )

    def _ended(self, ended: EndedTicket) -> None:
        prefill = self._prefills.pop(ended.ticket_id)
        del self._by_engine_id[prefill.engine_id]
        if self._by_request.get(prefill.request_id) is prefill:
            del self._by_request[prefill.request_id]
        self._runtime.host.post(lambda engine: engine.release(prefill.engine_id))
        self._runtime.admission.leave(ended.ticket_id)
        prefill.end()
        if ended.reason in (EndReason.REVOKED, EndReason.NEVER_FOLLOWED, EndReason.FOLLOWER_LOST):
            self._runtime.metrics.handover_failed(ended.reason)
        logger.info(
            "ticket ended",
            extra=fields(request_id=prefill.request_id, ticket_id=ended.ticket_id, reason=ended.reason),
        )

    async def _watch_clock(self) -> None:
        while True:
            slept_from = time.monotonic()
            await asyncio.sleep(_TICK_S)
            if time.monotonic() - slept_from > self._config.heartbeat_timeout_s / 2:
                # This process itself was stopped or starved: first read what the followers sent meanwhile.
                continue
            for lost in self._tickets.expire():
                prefill = self._prefills.get(lost.ticket_id)
                if prefill is not None and prefill.follower is not None:
                    logger.warning("follower silent", extra=fields(ticket_id=lost.ticket_id))
                    prefill.follower.close()

    # One stream.

    async def _read_attach(self, requests: _Requests, context: _FollowContext) -> prefill_pb2.Attach:
        try:
            async with asyncio.timeout(self._config.heartbeat_timeout_s):
                first = await anext(requests, None)
        except TimeoutError:
            first = None
        if first is None or not first.HasField("attach"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be Attach")
        return first.attach

    async def _handshake(self, attach: prefill_pb2.Attach, context: _FollowContext) -> str:
        own, reader = self._runtime.identity, wire.identity_from_wire(attach.identity)
        try:
            # Whether it takes KV without a drafter's is for the reader to say.
            require_same(own, reader if own.draft else without_draft(reader))
            layout = wire.layout_from_wire(attach.layout)
            require_same_layout(self._runtime.layout, layout, may_be_longer=own.draft != reader.draft)
            return registry.choose(attach.transports, tuple(self._runtime.transports))
        except (IdentityMismatchError, LayoutMismatchError, NoCommonTransportError) as error:
            self._runtime.metrics.handover_failed("refused")
            logger.warning("peer refused", extra=fields(peer=attach.worker_id, reason=str(error)))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise AssertionError("abort raises") from error

    async def _listen(self, ticket_id: str, follower: Follower, requests: _Requests) -> None:
        try:
            async for message in requests:
                self._hear(ticket_id, follower, message)
        finally:
            # The decode worker closed its half; a ticket that has not ended waits for another.
            follower.close()

    def _hear(self, ticket_id: str, follower: Follower, message: prefill_pb2.FollowRequest) -> None:
        generation = follower.generation
        self._tickets.heard(ticket_id, generation)
        match message.WhichOneof("message"):
            case "validate":
                asked = message.validate.generation
                valid = asked == generation and self._tickets.validate(ticket_id, generation)
                answer = prefill_pb2.Validated(generation=asked, valid=valid)
                follower.send(prefill_pb2.FollowEvent(validated=answer))
            case "done" if message.done.generation == generation:
                self._tickets.done(ticket_id, generation)
            case "abandon":
                self._tickets.abandon(ticket_id, generation)
