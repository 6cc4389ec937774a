"""A router reduced to its Session stream."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import grpc

from kvrelay.v1 import common_pb2, decode_pb2, decode_pb2_grpc, prefill_pb2, worker_pb2
from tests.support.workers import LIMIT_S


@dataclass
class Reply:
    """What came for one request. `events` counts token events; `times_s` is when each token came."""

    first_index: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[common_pb2.TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[common_pb2.TokenLogprobs] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    end: decode_pb2.EndEvent | None = None
    ends: int = 0
    events: int = 0
    cached_tokens: int | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, event: decode_pb2.TokenEvent) -> None:
        """As a router does: only the index that is expected next, and no gaps."""
        self.events += 1
        if event.HasField("prefilled"):
            self.cached_tokens = event.prefilled.cached_tokens
            self.prompt_logprobs = list(event.prefilled.prompt_logprobs)
        known = self.first_index + len(self.tokens) - event.index
        assert known >= 0, "tokens were skipped"
        old = self.tokens[len(self.tokens) - known :][: len(event.token_ids)]
        assert old == list(event.token_ids[:known]), "a token changed when it was sent again"
        self.tokens.extend(event.token_ids[known:])
        assert len(event.logprobs) in (0, len(event.token_ids))
        self.logprobs.extend(event.logprobs[known:])
        now_s = time.perf_counter()
        self.times_s.extend(now_s for _ in event.token_ids[known:])


class RouterClient:
    """Speaks Decode.Session. `silent` stops its heartbeats, `deaf` its reading."""

    def __init__(self, endpoint: str, router_id: str = "router-0", heartbeat_s: float = 0.2) -> None:
        self._channel = grpc.aio.insecure_channel(endpoint)
        self._stub = decode_pb2_grpc.DecodeStub(self._channel)
        self._heartbeat_s = heartbeat_s
        self.router_id = router_id
        self.replies: dict[tuple[str, int], Reply] = {}
        self.silent = False
        self.hearing = asyncio.Event()
        self.hearing.set()
        self.messages = 0
        self._said: list[decode_pb2.DecodeCommand] = []
        self.broken = asyncio.Event()

    async def __aenter__(self) -> RouterClient:
        self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()
        await self._channel.close()

    def connect(self) -> None:
        """Opens the stream."""
        self.broken.clear()
        self._outgoing: asyncio.Queue[decode_pb2.DecodeCommand] = asyncio.Queue()
        self._outgoing.put_nowait(decode_pb2.DecodeCommand(hello=decode_pb2.Hello(router_id=self.router_id)))
        self._call = self._stub.Session(self._commands())
        self._reader = asyncio.create_task(self._read())

    async def disconnect(self) -> None:
        """Breaks the stream off."""
        self.hearing.set()
        self._call.cancel()
        await asyncio.wait({self._reader})

    async def reconnect(self) -> None:
        """Breaks the stream off and comes back, saying again what the worker may not have heard."""
        await self.disconnect()
        self.connect()
        for command in self._said:
            meant = command.submit.request if command.HasField("submit") else command.cancel
            if self.replies[meant.request_id, meant.attempt].end is None:
                self._outgoing.put_nowait(command)

    def submit(self, request: worker_pb2.WorkRequest, ticket: prefill_pb2.KvTicket | None = None) -> Reply:
        """Sends a request; the reply fills by itself."""
        reply = Reply(first_index=len(request.resumed_token_ids))
        self.replies[request.request_id, request.attempt] = reply
        submit = decode_pb2.Submit(request=request, ticket=ticket)
        self._said.append(decode_pb2.DecodeCommand(submit=submit))
        self._outgoing.put_nowait(self._said[-1])
        return reply

    def cancel(self, request_id: str, attempt: int = 1) -> None:
        """Ends a request."""
        command = decode_pb2.Cancel(request_id=request_id, attempt=attempt, reason="test")
        self._said.append(decode_pb2.DecodeCommand(cancel=command))
        self._outgoing.put_nowait(self._said[-1])

    async def end_of(self, reply: Reply) -> decode_pb2.EndEvent:
        """Waits for the end of a request."""
        try:
            async with asyncio.timeout(LIMIT_S):
                await reply.ended.wait()
        except TimeoutError:
            state = "broken" if self.broken.is_set() else "open"
            raise AssertionError(f"no end after {LIMIT_S} s; the session is {state}") from None
        assert reply.end is not None
        return reply.end

    async def tokens_of(
        self, request: worker_pb2.WorkRequest, ticket: prefill_pb2.KvTicket | None = None
    ) -> list[int]:
        """Runs one request to its good end."""
        reply = self.submit(request, ticket)
        end = await self.end_of(reply)
        assert end.finish_reason in (common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH), end
        return reply.tokens

    async def _commands(self):  # type: ignore[no-untyped-def]  # an async generator of commands
        outgoing = self._outgoing
        while True:
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    command = await outgoing.get()
            except TimeoutError:
                if self.silent:
                    continue
                command = decode_pb2.DecodeCommand(heartbeat=prefill_pb2.Heartbeat())
            yield command

    async def _read(self) -> None:
        try:
            async for message in self._call:
                self.messages += 1
                await self.hearing.wait()
                for token in message.tokens:
                    if (reply := self.replies.get((token.request_id, token.attempt))) is not None:
                        reply.take(token)
                for end in message.ends:
                    if (reply := self.replies.get((end.request_id, end.attempt))) is not None:
                        reply.end = end
                        reply.ends += 1
                        reply.ended.set()
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        self.broken.set()
