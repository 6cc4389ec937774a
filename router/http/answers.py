"""Sends one request's answer, whole or as server-sent events, and ends it when its client leaves."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.choice_events import INLINE_POSITIONS, ChoiceDelta, ChoiceEnd, ChoiceEvent, usage_of
from router.generation import GenerationError
from router.http.errors import http_error, internal_error
from router.http.formats import AnswerFormat, Chunk, WholeChoice, running_usage, usage_body
from router.http.schema.common import StreamOptions
from router.prepare import PreparedRequest
from router.serving import Serving
from telemetry.logs import fields

logger = logging.getLogger(__name__)

_SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would otherwise collect events before it sends them.
    (b"x-accel-buffering", b"no"),
]
_DONE = b"data: [DONE]\n\n"


def _sse(data: object) -> bytes:
    return b"data: " + to_json(data) + b"\n\n"


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class GenerationResponse(Response):
    """Runs the request when the server sends the response; a client that leaves ends it at once.

    Subclasses say how the events become bytes. Errors before the first byte propagate to the
    application's error handlers.
    """

    def __init__(self, serving: Serving, prepared: PreparedRequest, form: AnswerFormat) -> None:
        super().__init__()
        self.serving = serving
        self.prepared = prepared
        self.form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves the request, or stops when nobody listens."""
        work = asyncio.ensure_future(self._send(scope, receive, send))
        left = asyncio.ensure_future(_client_left(receive))
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                logger.info("client left")
        finally:
            left.cancel()
            work.cancel()
            await asyncio.gather(work, left, return_exceptions=True)
        if not work.cancelled():
            work.result()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


class WholeAnswer(GenerationResponse):
    """One JSON body, once all choices have ended."""

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        deltas: dict[int, list[ChoiceDelta]] = defaultdict(list)
        ends: dict[int, ChoiceEnd] = {}
        async with aclosing(self.serving.run(self.prepared)) as events:
            async for event in events:
                if isinstance(event, ChoiceDelta):
                    deltas[event.choice].append(event)
                else:
                    ends[event.choice] = event
        choices = [_whole_choice(deltas[index], end) for index, end in sorted(ends.items())]
        usage = usage_body(usage_of(self.prepared, [choice.end for choice in choices]))

        def write() -> bytes:
            return to_json(self.form.whole(choices, usage))

        positions = sum(len(choice.shown) + len(choice.end.prompt_logprobs) for choice in choices)
        body = write() if positions <= INLINE_POSITIONS else await asyncio.to_thread(write)
        await Response(body, media_type="application/json")(scope, receive, send)


def _whole_choice(deltas: Sequence[ChoiceDelta], end: ChoiceEnd) -> WholeChoice:
    return WholeChoice(
        "".join(delta.text for delta in deltas),
        [token_id for delta in deltas for token_id in delta.token_ids],
        [token for delta in deltas for token in delta.shown],
        "".join(delta.reasoning for delta in deltas),
        [piece for delta in deltas for piece in delta.calls],
        end,
    )


class EventStream(GenerationResponse):
    """Server-sent events (WHATWG HTML, section 9.2), ended by `data: [DONE]`.

    The status is sent with the first event, so that a request that cannot start gets a proper error.
    After that an error is an event of its own and `[DONE]` does not come.
    """

    def __init__(
        self, serving: Serving, prepared: PreparedRequest, form: AnswerFormat, options: StreamOptions | None
    ) -> None:
        super().__init__(serving, prepared, form)
        self._with_usage = bool(options and options.include_usage)
        self._running_usage = self._with_usage and bool(options and options.continuous_usage_stats)
        self._ends: list[ChoiceEnd] = []
        self._tokens = 0

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        try:
            async with (
                aclosing(self.serving.run(self.prepared)) as events,
                aclosing(self._chunks(events)) as chunks,
            ):
                async for data in chunks:
                    if not begun:
                        begun = True
                        await send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS})
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        except GenerationError as error:
            if not begun:
                raise
            logger.warning("stream failed", extra=fields(kind=error.kind, message=error.message))
            last = _sse(http_error(error).body())
        # The status is out already: the client must hear of it inside the stream, the log gets the trace.
        except Exception:
            if not begun:
                raise
            logger.exception("stream failed")
            last = _sse(internal_error().body())
        else:
            last = _DONE
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _chunks(self, events: AsyncIterator[ChoiceEvent]) -> AsyncGenerator[bytes, None]:
        async for event in events:
            if isinstance(event, ChoiceDelta):
                self._tokens += len(event.token_ids)
            else:
                self._ends.append(event)
            if len(event.prompt_logprobs) <= INLINE_POSITIONS:
                data = self._write(event)
            else:
                data = await asyncio.to_thread(self._write, event)
            if data:
                yield data
        if self._with_usage:
            yield _sse(self.form.closing(usage_body(usage_of(self.prepared, self._ends))))

    def _write(self, event: ChoiceEvent) -> bytes:
        """The event's chunk; empty where there is nothing to say."""
        chunk: Chunk | None
        chunk = self.form.delta(event) if isinstance(event, ChoiceDelta) else self.form.end(event)
        if chunk is None:
            return b""
        if self._with_usage:
            usage = running_usage(self.prepared.prompt_tokens, self._tokens) if self._running_usage else None
            chunk["usage"] = usage
        return _sse(chunk)
