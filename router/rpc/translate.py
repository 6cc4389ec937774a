"""Messages of `kvrelay.v1.Inference` to the shared request path and back."""

from __future__ import annotations

import time

from pydantic import ValidationError

from kvrelay.v1 import common_pb2, inference_pb2
from router.choice_events import ChoiceEnd, UsageCount
from router.errors import InvalidRequestError, from_validation
from router.prepare import ClientRequest, new_request_id
from router.prompts import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from router.sampling_options import SamplingOptions

_SCALARS = ("temperature", "top_p", "top_k", "seed", "max_tokens", "min_tokens", "ignore_eos", "n")

FINISH_REASONS = {
    "stop": common_pb2.FINISH_REASON_STOP,
    "length": common_pb2.FINISH_REASON_LENGTH,
}


def prompt_of(request: inference_pb2.GenerateRequest | inference_pb2.TokenizeRequest) -> Prompt:
    """The one input that is set. Raises InvalidRequestError."""
    kind = request.WhichOneof("input")
    if isinstance(request, inference_pb2.GenerateRequest) and kind == "token_ids":
        return TokenPrompt(tuple(request.token_ids.ids), "token_ids")
    match kind:
        case "prompt":
            return TextPrompt(request.prompt)
        case "chat":
            return _chat_of(request.chat)
        case _:
            names = [field.name for field in request.DESCRIPTOR.oneofs_by_name["input"].fields]
            raise InvalidRequestError(f"One of {', '.join(names)} must be set.", "input", "missing_parameter")


def _chat_of(chat: inference_pb2.Chat) -> ChatPrompt:
    if not chat.messages:
        raise InvalidRequestError("chat.messages is empty.", "chat.messages", "empty_prompt")
    for position, message in enumerate(chat.messages):
        if not message.role:
            param = f"chat.messages[{position}].role"
            raise InvalidRequestError(f"{param} must not be empty.", param, "missing_parameter")
    messages = tuple({"role": message.role, "content": message.content} for message in chat.messages)
    return ChatPrompt(messages, "chat.messages")


def sampling_of(sampling: inference_pb2.SamplingOptions) -> SamplingOptions:
    """The options that are set. Raises InvalidRequestError."""
    values = {name: getattr(sampling, name) for name in _SCALARS if sampling.HasField(name)}
    if sampling.stop:
        values["stop"] = list(sampling.stop)
    if sampling.stop_token_ids:
        values["stop_token_ids"] = list(sampling.stop_token_ids)
    try:
        return SamplingOptions.model_validate(values)
    except ValidationError as error:
        raise from_validation(error) from None


def client_request(
    request: inference_pb2.GenerateRequest, time_remaining_s: float | None, arrived_at: float
) -> ClientRequest:
    """A Generate request for the shared path.

    Args:
        request: as received.
        time_remaining_s: up to the call's deadline; None for none.
        arrived_at: `time.monotonic()` when the call came in.

    Raises InvalidRequestError.
    """
    return ClientRequest(
        model=request.model,
        prompts=(prompt_of(request),),
        sampling=sampling_of(request.sampling),
        request_id=request.request_id or new_request_id(),
        arrived_at=arrived_at,
        cache_salt=request.cache_salt,
        deadline=None if time_remaining_s is None else time.time() + time_remaining_s,
        trace=request.trace,
    )


def end_response(request_id: str, end: ChoiceEnd, usage: UsageCount | None) -> inference_pb2.GenerateResponse:
    """A choice's last message; `usage` with the last one of the stream."""
    response = inference_pb2.GenerateResponse(
        choice=end.choice,
        finish_reason=FINISH_REASONS[end.finish_reason],
        timeline=end.timeline,
        request_id=request_id,
    )
    if usage is not None:
        response.usage.prompt_tokens = usage.prompt_tokens
        response.usage.completion_tokens = usage.completion_tokens
        response.usage.cached_tokens = usage.cached_tokens
    return response
