"""What one router is to be told: at most one pending entry for each request, however slow it reads."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from kvrelay.v1 import common_pb2, decode_pb2

# A message with so many bytes of log probabilities takes no further answer. Peers take 64 MiB, and those of
# one answer, 20 likeliest for each of 128k tokens, are 20 MiB.
_FULL_BYTES = 8 << 20


@dataclass(slots=True, eq=False)
class Answer:
    """The answer of one attempt so far, from which any part can be sent again.

    Attributes:
        first_index: index of `token_ids[0]` in the answer.
        logprobs: one for each of `token_ids` where they are asked for, else none.
        prompt_logprobs: sent with the first tokens.
        num_sent: leading tokens handed to the current stream.
        ended_at: when `end` was handed to a stream, seconds on the event loop's clock.
    """

    request_id: str
    attempt: int
    first_index: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[common_pb2.TokenLogprobs] = field(default_factory=list)
    cached_tokens: int = 0
    prompt_logprobs: list[common_pb2.TokenLogprobs] = field(default_factory=list)
    end: decode_pb2.EndEvent | None = None
    num_sent: int = 0
    ended_at: float | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Request id and attempt."""
        return self.request_id, self.attempt

    def take(self) -> decode_pb2.TokenEvent | None:
        """The tokens that were not sent yet, as one event."""
        if self.num_sent == len(self.token_ids):
            return None
        event = decode_pb2.TokenEvent(
            request_id=self.request_id,
            attempt=self.attempt,
            index=self.first_index + self.num_sent,
            token_ids=self.token_ids[self.num_sent :],
            logprobs=self.logprobs[self.num_sent :],
        )
        if self.num_sent == 0:
            event.prefilled.cached_tokens = self.cached_tokens
            event.prefilled.prompt_logprobs.extend(self.prompt_logprobs)
        self.num_sent = len(self.token_ids)
        return event


class Outbox:
    """Answers that wait to be sent to one router, and those whose arrival is not sure yet.

    Nothing is queued twice: a request that produces faster than the router reads gets its tokens joined
    into one event, so the memory is bounded by the requests' own lengths. An answer is kept until
    `keep_s` after its end was sent. `replay` sends everything that is kept once more, from each answer's
    first token: the stream before may have swallowed any part of it, and the router takes only what it
    lacks.

    Args:
        keep_s: how long a break of the stream may go unnoticed.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._changed: dict[tuple[str, int], Answer] = {}
        self._unsure: dict[tuple[str, int], Answer] = {}
        # Ends in the order in which they were sent, with `ended_at` of then; one that was sent again later
        # stands here again.
        self._sent_ends: deque[tuple[float, Answer]] = deque()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Answers kept."""
        return len(self._unsure)

    def has_end(self, request_id: str, attempt: int) -> bool:
        """Whether an attempt has ended and its end may have to be sent again."""
        answer = self._unsure.get((request_id, attempt))
        return answer is not None and answer.end is not None

    def open(self, answer: Answer) -> None:
        """An attempt begins."""
        self._unsure[answer.key] = answer

    def changed(self, answer: Answer) -> None:
        """Its tokens or its end are to be sent."""
        self._changed[answer.key] = answer
        self._wake.set()

    def wake(self) -> None:
        """Makes `wait` return."""
        self._wake.set()

    def replay(self) -> None:
        """A new stream begins: what was handed to the one before may not have arrived."""
        self._forget_old()
        for answer in self._unsure.values():
            answer.num_sent = 0
            self.changed(answer)

    async def wait(self, timeout_s: float) -> None:
        """Returns when there is something to send, at the latest after `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()

    def take(self, step: int) -> decode_pb2.DecodeEvents:
        """What is to be sent now, as one message; a heartbeat where that is nothing.

        Log probabilities make answers large: what would make the message larger than a peer takes is left
        for the next one, and `wait` returns at once.
        """
        now = asyncio.get_running_loop().time()
        message = decode_pb2.DecodeEvents(step=step)
        message.heartbeat = not self._changed
        self._wake.clear()
        num_bytes = 0
        while self._changed:
            if num_bytes > _FULL_BYTES:
                self._wake.set()
                break
            answer = self._changed.pop(next(iter(self._changed)))
            if (tokens := answer.take()) is not None:
                message.tokens.append(tokens)
                if tokens.logprobs or tokens.prefilled.prompt_logprobs:
                    num_bytes += tokens.ByteSize()
            if answer.end is not None:
                message.ends.append(answer.end)
                answer.ended_at = now
                self._sent_ends.append((now, answer))
        self._forget_old()
        return message

    def _forget_old(self) -> None:
        before = asyncio.get_running_loop().time() - self._keep_s
        while self._sent_ends and self._sent_ends[0][0] < before:
            sent_at, answer = self._sent_ends.popleft()
            # What was sent again meanwhile, or is about to be, is forgotten after that.
            if answer.ended_at == sent_at and answer.key not in self._changed:
                self._unsure.pop(answer.key, None)
