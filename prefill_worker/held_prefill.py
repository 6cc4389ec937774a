"""One prompt on a prefill worker, from Start to the end of its ticket, and who follows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from engine.api import KvReady, PrefillDone, TokenOutput
from engine.grammar.base import CompiledGrammar
from kv_transfer.types import KvTicket
from kvrelay.v1 import prefill_pb2
from worker.requests import logprobs_message


class Follower:
    """The sending half of one Follow stream.

    What is queued is bounded by the prompt: one message for each prefill chunk and a few more.
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self._events: asyncio.Queue[prefill_pb2.FollowEvent | None] = asyncio.Queue()

    def send(self, event: prefill_pb2.FollowEvent) -> None:
        """Queues one message."""
        self._events.put_nowait(event)

    def close(self) -> None:
        """Ends the stream after what is queued."""
        self._events.put_nowait(None)

    async def events(
        self, heartbeat_s: float, steps: Callable[[], int]
    ) -> AsyncIterator[prefill_pb2.FollowEvent]:
        """What is queued, with heartbeats in between, until `close`."""
        while True:
            try:
                async with asyncio.timeout(heartbeat_s):
                    event = await self._events.get()
            except TimeoutError:
                event = prefill_pb2.FollowEvent(heartbeat=prefill_pb2.Heartbeat(steps=steps()))
            if event is None:
                return
            yield event


@dataclass(slots=True)
class HeldPrefill:
    """State of one ticket's prompt.

    `revoked` is why the blocks were taken back. `grammar` is held so that the engine finds it compiled.
    """

    ticket: KvTicket
    request_id: str
    attempt: int
    engine_id: str
    grammar: CompiledGrammar | None
    deadline: asyncio.TimerHandle | None = None
    follower: Follower | None = None
    revoked: prefill_pb2.Revoked | None = None
    _first_token: TokenOutput | None = None
    _finished: prefill_pb2.Finished | None = None
    _num_ready: int = 0
    _block_ids: list[int] = field(default_factory=list)
    _start_unix_ns: int = 0
    _end_unix_ns: int = 0

    def follow(self, follower: Follower, attached: prefill_pb2.Attached) -> None:
        """A new follower takes the place of the one before, and is told everything so far."""
        if self.follower is not None:
            self.follower.close()
        self.follower = follower
        follower.send(prefill_pb2.FollowEvent(attached=attached))
        if self._num_ready:
            ready = prefill_pb2.KvReady(
                num_tokens=self._num_ready,
                block_ids=self._block_ids,
                start_unix_ns=self._start_unix_ns,
                end_unix_ns=self._end_unix_ns,
            )
            follower.send(prefill_pb2.FollowEvent(kv_ready=ready))
        if self._finished is not None:
            follower.send(prefill_pb2.FollowEvent(finished=self._finished))

    def ready(self, event: KvReady) -> None:
        """More of the context's KV is written."""
        self._num_ready = event.num_tokens
        self._block_ids.extend(event.new_block_ids)
        self._start_unix_ns = self._start_unix_ns or event.start_unix_ns
        self._end_unix_ns = event.end_unix_ns
        if self.follower is not None:
            ready = prefill_pb2.KvReady(
                num_tokens=event.num_tokens,
                block_ids=event.new_block_ids,
                start_unix_ns=event.start_unix_ns,
                end_unix_ns=event.end_unix_ns,
            )
            self.follower.send(prefill_pb2.FollowEvent(kv_ready=ready))

    def first_token(self, token: TokenOutput) -> None:
        """The token that follows the context; `done` comes in the same step."""
        self._first_token = token

    def done(self, event: PrefillDone) -> None:
        """The context is computed and its first token drawn."""
        first = self._first_token
        assert first is not None, "the first token comes with the end of the prefill"
        self._finished = prefill_pb2.Finished(
            first_token_id=first.token_id,
            first_logprobs=logprobs_message(first.logprobs) if first.logprobs is not None else None,
            prompt_logprobs=[logprobs_message(logprobs) for logprobs in event.prompt_logprobs],
            cached_tokens=event.cached_tokens,
            queue_s=event.queue_s,
            prefill_s=event.prefill_s,
            carried=event.carried,
        )
        if self.follower is not None:
            self.follower.send(prefill_pb2.FollowEvent(finished=self._finished))

    def end(self) -> None:
        """The ticket has ended: nothing more is sent but the reason, where there is one."""
        if self.deadline is not None:
            self.deadline.cancel()
        if self.follower is not None:
            if self.revoked is not None:
                self.follower.send(prefill_pb2.FollowEvent(revoked=self.revoked))
            self.follower.close()
