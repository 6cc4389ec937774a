"""The request path that both doors share: prepare, admit, generate every choice, turn tokens into text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace

from router.answer_reader import AnswerReader
from router.answer_text import AnswerText
from router.best_of import best_of
from router.choice_events import ChoiceDelta, ChoiceEnd, ChoiceEvent
from router.generation import (
    Admission,
    Dispatcher,
    ErrorKind,
    Generation,
    GenerationEnd,
    GenerationError,
    GenerationRequest,
)
from router.prepare import ClientRequest, PreparedRequest, Preparer
from router.prompts import ServedModel
from router.speculation_options import check_method

# Events of all choices that wait for a slow client before the choices' own queues take over.
_MERGE_QUEUE = 64
DRAINING_RETRY_S = 1.0
# Longer than from a request's preparation to its run, with a busy event loop.
_BETWEEN_S = 0.05


class Serving:
    """Serves client requests for one model.

    Args:
        model: what is served.
        dispatcher: the router's core.
        on_end: is told why each choice ended that a client gets.

    Attributes:
        active: client requests that are being prepared or run.
        draining: new requests are refused; set once, by the process's shutdown.
    """

    def __init__(
        self,
        model: ServedModel,
        dispatcher: Dispatcher,
        on_end: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.model = model
        self._on_end = on_end
        self._preparer = Preparer(model)
        self._dispatcher = dispatcher
        self.active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    @property
    def ready(self) -> bool:
        """Whether a request could be served now."""
        return not self.draining and self._dispatcher.ready

    @property
    def preparer(self) -> Preparer:
        """Validates and tokenizes."""
        return self._preparer

    async def prepare(self, request: ClientRequest) -> PreparedRequest:
        """Raises InvalidRequestError, and GenerationError: UNAVAILABLE while draining, DEADLINE."""
        if self.draining:
            raise GenerationError(
                ErrorKind.UNAVAILABLE, "This router is shutting down; try another.", DRAINING_RETRY_S
            )
        check_method(request.speculation, self._dispatcher.draft_methods)
        left_s = None if request.deadline is None else request.deadline - time.time()
        with self._activity():
            try:
                # A grammar may wait for others to be compiled.
                async with asyncio.timeout(left_s):
                    return await self._preparer.prepare(request)
            except TimeoutError:
                raise GenerationError(
                    ErrorKind.DEADLINE, "the deadline passed while the request was prepared"
                ) from None

    async def run(self, prepared: PreparedRequest) -> AsyncGenerator[ChoiceEvent, None]:
        """Yields the events of all choices as they come; each choice ends with its ChoiceEnd.

        Closing the generator, or cancelling the task that iterates it, ends every choice everywhere.
        Raises GenerationError; the other choices are cancelled then.
        """
        with self._activity():
            places = len(prepared.generations)
            priority = prepared.generations[0].priority
            waiting = self._dispatcher.admit(prepared.deadline, prepared.arrived_at, places, priority)
            async with waiting as admission:
                attempts = [
                    self._choice(prepared, index, request, admission)
                    for index, request in enumerate(prepared.generations)
                ]
                events = attempts[0] if len(attempts) == 1 else _merge(attempts)
                if prepared.num_tried > prepared.num_choices:
                    events = best_of(prepared, events)
                async with aclosing(events):
                    async for event in events:
                        if isinstance(event, ChoiceEnd):
                            self._on_end(event.finish_reason)
                        yield event

    async def wait_idle(self) -> None:
        """Returns when no request is active."""
        while True:
            await self._idle.wait()
            # A request is not active between its preparation and its run, which follows at once.
            await asyncio.sleep(_BETWEEN_S)
            if not self.active:
                return

    @contextmanager
    def _activity(self) -> Iterator[None]:
        self.active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.active -= 1
            if not self.active:
                self._idle.set()

    async def _choice(
        self, prepared: PreparedRequest, index: int, request: GenerationRequest, admission: Admission
    ) -> AsyncGenerator[ChoiceEvent, None]:
        text = AnswerText(self.model.tokenizer, request.sampling, prepared.rules)
        answer = AnswerReader(text, prepared.reading)
        generation = self._dispatcher.generate(request, admission)
        # Not before the first token: a request that cannot start must not seem to have begun.
        echo = prepared.echo[index // prepared.num_tried] if prepared.echo else ""
        try:
            async for event in generation:
                of_prompt = event.prompt_logprobs
                if echo:
                    yield ChoiceDelta(index, echo, (), prompt_logprobs=of_prompt)
                    echo, of_prompt = "", ()
                if isinstance(event, GenerationEnd):
                    rest = answer.finish()
                    if rest.text or rest.shown or rest.reasoning or rest.calls:
                        yield ChoiceDelta(index, rest.text, (), (), rest.shown, rest.reasoning, rest.calls)
                    yield _end(index, answer, event)
                elif prepared.score_only:
                    yield replace(_end(index, answer, await _end_of(generation)), finish_reason="length")
                    return
                else:
                    piece = answer.add(event.token_ids, event.logprobs)
                    count = piece.num_tokens
                    yield ChoiceDelta(
                        choice=index,
                        text=piece.text,
                        token_ids=event.token_ids[:count],
                        logprobs=event.logprobs[:count],
                        shown=piece.shown,
                        reasoning=piece.reasoning,
                        calls=piece.calls,
                        prompt_logprobs=of_prompt,
                    )
                    if piece.stopped:
                        yield _end(index, answer, await generation.finish())
                        return
        finally:
            await generation.aclose()


async def _end_of(generation: Generation) -> GenerationEnd:
    """The end of a generation of which nothing else is wanted."""
    async for event in generation:
        if isinstance(event, GenerationEnd):
            return event
    raise GenerationError(ErrorKind.INTERNAL, "the generation stopped without its end")


def _end(index: int, answer: AnswerReader, end: GenerationEnd) -> ChoiceEnd:
    """Tokens that came behind a stop string are not the client's: the answer's own count holds."""
    return ChoiceEnd(
        choice=index,
        finish_reason=answer.reason(end.finish_reason),
        completion_tokens=answer.num_tokens,
        cached_tokens=end.cached_tokens,
        timeline=end.timeline,
        prompt_logprobs=end.prompt_logprobs,
        reasoning_tokens=answer.reasoning_tokens,
    )


async def _merge(
    choices: Sequence[AsyncGenerator[ChoiceEvent, None]],
) -> AsyncGenerator[ChoiceEvent, None]:
    """Runs all choices at once and yields their events in order of arrival. The first error ends all."""
    queue: asyncio.Queue[ChoiceEvent | Exception | None] = asyncio.Queue(_MERGE_QUEUE)

    async def pump(choice: AsyncGenerator[ChoiceEvent, None]) -> None:
        try:
            async with aclosing(choice):
                async for event in choice:
                    await queue.put(event)
        # Whatever it is, it is raised again by the reader, in the request's own task.
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.create_task(pump(choice)) for choice in choices]
    try:
        remaining = len(tasks)
        while remaining:
            event = await queue.get()
            if event is None:
                remaining -= 1
            elif isinstance(event, Exception):
                raise event
            else:
                yield event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
