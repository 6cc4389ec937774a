"""A decode worker that follows tickets, then gives the right answer's tokens."""

# gRPC names the methods.
# ruff: noqa: N802

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from kvrelay.v1 import common_pb2, decode_pb2, prefill_pb2, worker_pb2
from kvrelay.v1.decode_pb2_grpc import DecodeServicer, add_DecodeServicer_to_server
from kvrelay.v1.prefill_pb2_grpc import PrefillStub
from tests.support.fake_workers.process import HEARTBEAT_S, FakeWorker
from tests.support.fake_workers.scripts import DecodeScript, answer_logprobs, answer_token


class KvLostError(Exception):
    """The KV could not be had. `alive`: the ticket may be given to another."""

    def __init__(self, message: str, *, alive: bool) -> None:
        super().__init__(message)
        self.alive = alive


@dataclass(slots=True)
class _Session:
    """One router's stream: what is to be sent, and the requests that run for it."""

    outbox: asyncio.Queue[decode_pb2.TokenEvent | decode_pb2.EndEvent | None] = field(
        default_factory=asyncio.Queue
    )
    running: dict[str, tuple[int, asyncio.Task[Any]]] = field(default_factory=dict)


class FakeDecodeWorker(FakeWorker, DecodeServicer):
    """Follows tickets, then gives the right answer's tokens.

    Args:
        worker_id: its name.
        block_size: tokens in a block.
        script: what to do with each request.
        follow: whether tickets are really followed; otherwise they count as computed at once.
    """

    def __init__(
        self,
        worker_id: str,
        block_size: int = 4,
        script: Callable[[decode_pb2.Submit], DecodeScript] = lambda _: DecodeScript(),
        *,
        follow: bool = True,
    ) -> None:
        super().__init__(worker_id, worker_pb2.WORKER_ROLE_DECODE, block_size)
        self.script = script
        self.submitted: list[decode_pb2.Submit] = []
        self.routers: set[str] = set()
        self._follow = follow
        self._sessions: set[asyncio.Task[Any]] = set()
        self._running: set[tuple[str, int]] = set()

    @property
    def running(self) -> set[tuple[str, int]]:
        """Request id and attempt of all that runs."""
        return set(self._running)

    def _register(self, server: grpc.aio.Server) -> None:
        add_DecodeServicer_to_server(self, server)

    async def Session(
        self, request_iterator: AsyncIterator[decode_pb2.DecodeCommand], context: Any
    ) -> AsyncIterator[decode_pb2.DecodeEvents]:
        first = await anext(request_iterator)
        assert first.WhichOneof("message") == "hello"
        self.routers.add(first.hello.router_id)
        session = _Session()
        reader = self.spawn(self._read(session, request_iterator))
        try:
            while True:
                events = decode_pb2.DecodeEvents()
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        batch = [await session.outbox.get()]
                except TimeoutError:
                    events.heartbeat = True
                    batch = []
                while not session.outbox.empty():
                    batch.append(session.outbox.get_nowait())
                for event in batch:
                    if isinstance(event, decode_pb2.TokenEvent):
                        events.tokens.append(event)
                    elif isinstance(event, decode_pb2.EndEvent):
                        events.ends.append(event)
                await self._awake.wait()
                yield events
                for _ in batch:
                    session.outbox.task_done()
                if None in batch:
                    await context.abort(grpc.StatusCode.INTERNAL, "dropped as told")
        finally:
            reader.cancel()
            for _, task in session.running.values():
                task.cancel()

    async def _read(self, session: _Session, commands: AsyncIterator[decode_pb2.DecodeCommand]) -> None:
        async for command in commands:
            match command.WhichOneof("message"):
                case "submit":
                    submit = command.submit
                    self.submitted.append(submit)
                    work = submit.request
                    task = self.spawn(self._run(session, submit))
                    session.running[work.request_id] = work.attempt, task
                case "cancel":
                    cancel = command.cancel
                    self.cancelled.append((cancel.request_id, cancel.attempt))
                    attempt, task = session.running.get(cancel.request_id, (0, None))
                    if task is not None and attempt == cancel.attempt and task.cancel():
                        session.outbox.put_nowait(
                            decode_pb2.EndEvent(
                                request_id=cancel.request_id,
                                attempt=attempt,
                                finish_reason=common_pb2.FINISH_REASON_CANCELLED,
                            )
                        )

    async def _run(self, session: _Session, submit: decode_pb2.Submit) -> None:
        work = submit.request
        key = work.request_id, work.attempt
        self._running.add(key)
        end = decode_pb2.EndEvent(request_id=work.request_id, attempt=work.attempt)
        try:
            await self._generate(session, submit, end)
        except KvLostError as error:
            end.finish_reason = common_pb2.FINISH_REASON_ERROR
            end.error.kind = decode_pb2.WorkError.KIND_KV_LOST
            end.error.message = str(error)
            end.error.ticket_alive = error.alive
        finally:
            self._running.discard(key)
        session.outbox.put_nowait(end)

    async def _generate(self, session: _Session, submit: decode_pb2.Submit, end: decode_pb2.EndEvent) -> None:
        work = submit.request
        script = self.script(submit)
        first = len(work.resumed_token_ids)
        stop_at = first + script.after
        fails = script.die or script.hang or script.drop_stream or script.error is not None or script.omit
        if fails and script.after == 0 and await self._fail(session, script, end):
            return
        cached = script.cached_tokens
        if submit.HasField("ticket") and self._follow:
            cached = await self._handover(submit.ticket)
        index = first
        while index < work.sampling.max_tokens:
            last = min(index + script.step_tokens, work.sampling.max_tokens)
            if fails and index < stop_at:
                last = min(last, stop_at)
            begin = max(first, index - script.repeat)
            event = decode_pb2.TokenEvent(
                request_id=work.request_id,
                attempt=work.attempt,
                index=begin,
                token_ids=[answer_token(work.prompt_token_ids, at) for at in range(begin, last)],
            )
            if work.sampling.HasField("logprobs"):
                event.logprobs.extend(answer_logprobs(token_id) for token_id in event.token_ids)
            if index == first:
                event.prefilled.cached_tokens = cached
                if work.sampling.HasField("prompt_logprobs"):
                    event.prefilled.prompt_logprobs.extend(map(answer_logprobs, work.prompt_token_ids[1:]))
            session.outbox.put_nowait(event)
            index = last
            if fails and index == stop_at:
                index = max(index, min(index + script.omit, work.sampling.max_tokens - 1))
                if await self._fail(session, script, end):
                    return
            await asyncio.sleep(script.step_s)
        end.finish_reason = script.finish
        end.timeline.transport = "fake" if submit.HasField("ticket") else ""

    async def _fail(self, session: _Session, script: DecodeScript, end: decode_pb2.EndEvent) -> bool:
        """Does what the script says; returns whether the request ends in good order."""
        await session.outbox.join()
        if script.error is not None:
            end.finish_reason = common_pb2.FINISH_REASON_ERROR
            end.error.CopyFrom(script.error)
            return True
        if script.drop_stream:
            session.outbox.put_nowait(None)
            await asyncio.Event().wait()
        if script.die:
            self.die_soon()
            await asyncio.Event().wait()
        if script.hang:
            self.hang()
            await asyncio.Event().wait()
        return False

    async def _handover(self, ticket: prefill_pb2.KvTicket) -> int:
        """Follows the ticket to its end; returns the cached tokens. Raises KvLostError."""
        async with grpc.aio.insecure_channel(ticket.endpoint) as channel:
            call = PrefillStub(channel).Follow()
            try:
                await call.write(
                    prefill_pb2.FollowRequest(
                        attach=prefill_pb2.Attach(ticket_id=ticket.ticket_id, worker_id=self.info.worker_id)
                    )
                )
                event = await call.read()
                if event is grpc.aio.EOF or event.WhichOneof("message") != "finished":
                    raise KvLostError("ticket revoked", alive=False)
                await call.write(prefill_pb2.FollowRequest(done=prefill_pb2.Done(generation=1)))
                await call.done_writing()
                while await call.read() is not grpc.aio.EOF:
                    continue
            except grpc.aio.AioRpcError as error:
                raise KvLostError(f"follow failed: {error.details()}", alive=False) from error
            finally:
                call.cancel()
            return event.finished.cached_tokens
