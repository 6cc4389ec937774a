"""Handlers of the calls that have a body: they parse, ask the shared request path, choose a form."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from router.http.answers import EventStream, WholeAnswer
from router.http.body import deadline_of, parse_object, read_body
from router.http.chat_format import ChatFormat
from router.http.completion_format import CompletionFormat
from router.http.formats import AnswerFormat, AnswerView, Envelope
from router.http.logprobs import LogprobsWriter
from router.http.other_responses import Detokenization, Tokenization
from router.http.schema.chat import ChatCompletionRequest
from router.http.schema.completions import CompletionRequest
from router.http.schema.tokens import DetokenizeRequest, TokenizeRequest
from router.prepare import ClientRequest, Preparer
from router.serving import Serving
from router.text.tokenizer import INLINE_CHARACTERS


class HttpDoor:
    """Handlers of the endpoints that take a body.

    Args:
        serving: the shared request path.
        max_body_bytes: largest body.
        fingerprint_of: gives a text that changes when the same seed may give another answer.
    """

    def __init__(self, serving: Serving, max_body_bytes: int, fingerprint_of: Callable[[], str]) -> None:
        self._serving = serving
        self._max_body_bytes = max_body_bytes
        self._fingerprint_of = fingerprint_of

    async def chat_completions(self, request: Request) -> Response:
        """Answers a chat, through the model's own chat template."""
        body = ChatCompletionRequest.from_json(await self._body(request))
        return await self._generate(request, body, ChatFormat)

    async def completions(self, request: Request) -> Response:
        """Continues one prompt or several."""
        body = CompletionRequest.from_json(await self._body(request))
        return await self._generate(request, body, CompletionFormat)

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text or a chat, exactly as a generation would see them; of whatever number."""
        body = TokenizeRequest.from_json(await self._body(request))
        preparer = self._checked(body.model)
        token_ids = await preparer.tokenize(body.as_prompt(), body.truncate_prompt_tokens)
        model = preparer.model

        def write() -> bytes:
            answer: Tokenization = {
                "count": len(token_ids),
                "max_model_len": model.max_model_len,
                "tokens": list(token_ids),
            }
            if body.return_token_strs:
                answer["token_strs"] = [model.tokenizer.token(token_id) for token_id in token_ids]
            return to_json(answer)

        written = write() if len(token_ids) <= INLINE_CHARACTERS else await asyncio.to_thread(write)
        return Response(written, media_type="application/json")

    async def detokenize(self, request: Request) -> Response:
        """Text of token ids."""
        body = DetokenizeRequest.from_json(await self._body(request))
        text = await self._checked(body.model).detokenize(
            body.tokens, skip_special_tokens=bool(body.skip_special_tokens), param="tokens"
        )
        answer: Detokenization = {"prompt": text}
        return Response(to_json(answer), media_type="application/json")

    def _checked(self, model: str | None) -> Preparer:
        if model:
            self._serving.preparer.check_model(model)
        return self._serving.preparer

    async def _body(self, request: Request) -> dict[str, object]:
        return parse_object(await read_body(request, self._max_body_bytes))

    def _envelope(self, request: Request) -> Envelope:
        fingerprint = "fp_" + hashlib.sha256(self._fingerprint_of().encode()).hexdigest()[:12]
        return Envelope(request.state.request_id, int(time.time()), self._serving.model.name, fingerprint)

    async def _generate(
        self,
        request: Request,
        body: ChatCompletionRequest | CompletionRequest,
        make_format: Callable[[Envelope, AnswerView], AnswerFormat],
    ) -> Response:
        sampling = body.sampling()
        prepared = await self._serving.prepare(
            ClientRequest(
                model=body.model,
                prompts=body.prompts(),
                sampling=sampling,
                request_id=request.state.request_id,
                arrived_at=request.state.arrived_at,
                cache_salt=body.cache_salt or "",
                deadline=deadline_of(request, body.timeout),
                priority=body.priority or 0,
                truncate_prompt_tokens=body.truncate_prompt_tokens,
                answers=body.answers(),
                speculation=body.speculation,
            )
        )
        writer = LogprobsWriter(
            self._serving.model.tokenizer,
            as_ids=bool(body.return_tokens_as_token_ids),
            num_top=sampling.logprobs or 0,
        )
        view = AnswerView(prepared, writer, sampling.prompt_logprobs, bool(body.return_token_ids))
        form = make_format(self._envelope(request), view)
        if body.stream:
            return EventStream(self._serving, prepared, form, body.stream_options)
        return WholeAnswer(self._serving, prepared, form)
