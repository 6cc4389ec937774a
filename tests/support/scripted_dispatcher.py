"""A dispatcher that answers as a test says, with the router's real admission queue in front."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal

from kvrelay.v1.common_pb2 import Timeline
from router.admission import AdmissionQueue
from router.generation import Admission, GenerationEnd, GenerationRequest, TokenDelta, TokenLogprobs
from tests.support.tiny_tokenizer import IM_END


@dataclass(frozen=True, slots=True)
class Script:
    """What happens to one generation.

    Attributes:
        deltas: tokens, message by message, cut off at max_tokens.
        finish_reason: of the end; "length" where max_tokens cut the answer off.
        cached_tokens: of the end.
        error: raised after the deltas instead of an end.
        hang: nothing comes after the deltas.
        gate: waited for before each delta.
    """

    deltas: tuple[tuple[int, ...], ...] = ()
    finish_reason: Literal["stop", "length"] = "stop"
    cached_tokens: int = 0
    error: Exception | None = None
    hang: bool = False
    gate: asyncio.Semaphore | None = None


def logprobs_at(token_id: int, num_top: int) -> TokenLogprobs:
    """What a scripted worker reports of a token: third likeliest, the less likely the higher its id."""
    top = tuple(((token_id + step) % 256, -0.125 * (step + 1)) for step in range(1, num_top + 1))
    return TokenLogprobs(-1.0 - token_id / 512, 3, top)


def says(text: str, *, step: int = 1, end: int | None = IM_END) -> tuple[tuple[int, ...], ...]:
    """Deltas of the byte tokenizer's tokens of `text`, `step` at a time, then the end token."""
    tokens = [*text.encode(), *([] if end is None else [end])]
    return tuple(tuple(tokens[start : start + step]) for start in range(0, len(tokens), step))


class ScriptedGeneration:
    """One generation. `state` is running, ended, failed, finished or closed."""

    def __init__(self, request: GenerationRequest, script: Script) -> None:
        self.request = request
        self.script = script
        self.state = "new"
        self.yielded = 0
        self._events = self._run()

    async def _run(self) -> AsyncGenerator[TokenDelta | GenerationEnd, None]:
        self.state = "running"
        reason = self.script.finish_reason
        for delta in self.script.deltas:
            if self.script.gate is not None:
                await self.script.gate.acquire()
            room = self.request.sampling.max_tokens - self.yielded
            index, token_ids = self.yielded, delta[:room]
            self.yielded += len(token_ids)
            num_top = self.request.sampling.logprobs
            logprobs = () if num_top is None else tuple(logprobs_at(each, num_top) for each in token_ids)
            yield TokenDelta(token_ids, index, logprobs, () if index else self._of_prompt())
            if self.yielded == self.request.sampling.max_tokens:
                reason = "length" if self.request.sampling.max_tokens < self._total else reason
                break
        if self.script.hang:
            await asyncio.Event().wait()
        if self.script.error is not None:
            self.state = "failed"
            raise self.script.error
        self.state = "ended"
        yield self._end(reason)

    @property
    def _total(self) -> int:
        return sum(map(len, self.script.deltas))

    def _end(self, reason: Literal["stop", "length"]) -> GenerationEnd:
        timeline = Timeline(prefill_s=0.5, decode_worker="decode-0")
        return GenerationEnd(reason, self.script.cached_tokens, self.yielded, timeline, self._of_prompt())

    def _of_prompt(self) -> tuple[TokenLogprobs, ...]:
        num_top = self.request.sampling.prompt_logprobs
        prompt = self.request.prompt_token_ids[1:]
        return () if num_top is None else tuple(logprobs_at(each, num_top) for each in prompt)

    def __aiter__(self) -> AsyncIterator[TokenDelta | GenerationEnd]:
        return self

    async def __anext__(self) -> TokenDelta | GenerationEnd:
        return await anext(self._events)

    async def finish(self) -> GenerationEnd:
        self.state = "finished"
        return self._end("stop")

    async def aclose(self) -> None:
        if self.state in ("new", "running"):
            self.state = "closed"
        await self._events.aclose()


class ScriptedDispatcher:
    """Implements `router.generation.Dispatcher`.

    Attributes:
        script: a Script for all generations, or a function of the request.
        generations: all that were asked for, in order.
        ready: what the doors are told.
        draft_methods: likewise.
    """

    def __init__(
        self,
        script: Script | Callable[[GenerationRequest], Script],
        *,
        max_running: int = 64,
        max_queued: int = 64,
    ) -> None:
        self.script = script
        self.queue = AdmissionQueue(max_running, max_queued)
        self.generations: list[ScriptedGeneration] = []
        self.ready = True
        self.draft_methods: tuple[str, ...] = ("eagle3", "ngram", "suffix", "none")

    def admit(
        self,
        deadline: float | None = None,
        arrived_at: float | None = None,
        places: int = 1,
        priority: int = 0,
    ) -> AbstractAsyncContextManager[Admission]:
        return self.queue.admit(deadline, arrived_at, places, priority)

    def generate(self, request: GenerationRequest, admission: Admission) -> ScriptedGeneration:
        script = self.script if isinstance(self.script, Script) else self.script(request)
        self.generations.append(ScriptedGeneration(request, script))
        return self.generations[-1]

    @property
    def states(self) -> list[str]:
        return [generation.state for generation in self.generations]
