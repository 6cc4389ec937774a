"""A prefill worker that has everything computed at once."""

# gRPC names the methods.
# ruff: noqa: N802

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from kvrelay.v1 import prefill_pb2, worker_pb2
from kvrelay.v1.prefill_pb2_grpc import PrefillServicer, add_PrefillServicer_to_server
from tests.support.fake_workers.process import FakeWorker
from tests.support.fake_workers.scripts import PrefillScript, answer_token


@dataclass(slots=True)
class FakeTicket:
    """One ticket: its state is one of those of docs/handover.md."""

    request: worker_pb2.WorkRequest
    script: PrefillScript
    state: str = "OPEN"
    generation: int = 0


class FakePrefillWorker(FakeWorker, PrefillServicer):
    """Gives tickets, and tells whoever follows one that everything is computed."""

    def __init__(
        self,
        worker_id: str,
        block_size: int = 4,
        script: Callable[[worker_pb2.WorkRequest], PrefillScript] = lambda _: PrefillScript(),
    ) -> None:
        super().__init__(worker_id, worker_pb2.WORKER_ROLE_PREFILL, block_size)
        self.script = script
        self.started: list[worker_pb2.WorkRequest] = []
        self.tickets: dict[str, FakeTicket] = {}

    @property
    def live_tickets(self) -> list[str]:
        """Tickets that pin blocks."""
        return [name for name, ticket in self.tickets.items() if ticket.state not in ("RELEASED", "EXPIRED")]

    def _register(self, server: grpc.aio.Server) -> None:
        add_PrefillServicer_to_server(self, server)

    async def restart(self) -> None:
        self.tickets.clear()
        await super().restart()

    async def Start(self, request: prefill_pb2.StartRequest, context: Any) -> prefill_pb2.StartResponse:
        await self._awake.wait()
        work = request.request
        script = self.script(work)
        self.started.append(work)
        if script.die:
            self.die_soon()
            await asyncio.Event().wait()
        if script.refuse is not None:
            await context.abort(script.refuse, "refused as told")
        ticket_id = f"{self.info.worker_id}/{work.request_id}/{work.attempt}"
        self.tickets[ticket_id] = FakeTicket(work, script)
        if script.start_hangs:
            await asyncio.Event().wait()
        return prefill_pb2.StartResponse(
            ticket=prefill_pb2.KvTicket(
                ticket_id=ticket_id,
                worker_id=self.info.worker_id,
                incarnation=self.info.incarnation,
                endpoint=self.info.endpoint,
                num_tokens=len(work.prompt_token_ids) + len(work.resumed_token_ids),
                ttl_ms=10_000,
            )
        )

    async def Follow(
        self, request_iterator: AsyncIterator[prefill_pb2.FollowRequest], context: Any
    ) -> AsyncIterator[prefill_pb2.FollowEvent]:
        attach = (await anext(request_iterator)).attach
        ticket = self.tickets.get(attach.ticket_id)
        if ticket is None or ticket.state in ("RELEASED", "EXPIRED"):
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such ticket")
            return
        ticket.generation += 1
        ticket.state = "ATTACHED"
        try:
            if ticket.script.revoke:
                ticket.state = "EXPIRED"
                yield prefill_pb2.FollowEvent(revoked=prefill_pb2.Revoked(reason="revoked", retryable=True))
                return
            if ticket.script.hold:
                await asyncio.Event().wait()
            await self._awake.wait()
            work = ticket.request
            yield prefill_pb2.FollowEvent(
                finished=prefill_pb2.Finished(
                    first_token_id=answer_token(work.prompt_token_ids, len(work.resumed_token_ids)),
                    cached_tokens=ticket.script.cached_tokens,
                )
            )
            async for message in request_iterator:
                if message.WhichOneof("message") in ("done", "abandon"):
                    ticket.state = "RELEASED"
                    return
        finally:
            if ticket.state == "ATTACHED":
                ticket.state = "DETACHED"

    async def Release(self, request: prefill_pb2.ReleaseRequest, context: Any) -> prefill_pb2.ReleaseResponse:
        ticket = self.tickets.get(request.ticket_id)
        if ticket is not None:
            ticket.state = "RELEASED"
        return prefill_pb2.ReleaseResponse()
