"""What may be asked of a generation, and the request message that it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from kvrelay.errors import InvalidRequestError
from kvrelay.types import Message
from kvrelay.v1 import inference_pb2

Messages = Sequence[Message | Mapping[str, str]]


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of `generate`, `stream` and `chat`. What is absent or None takes its default.

    Attributes:
        model: served name; default: the one model that is served.
        temperature: 0 is greedy; up to 2. Default 1.
        top_p: nucleus sampling, above 0 up to 1. Default 1, off.
        top_k: sample among so many; 0 is off. Default 0.
        seed: same seed, same tokens. Default: drawn by the router.
        max_tokens: most tokens of the answer. Default: what the context length leaves.
        min_tokens: no end before so many. Default 0.
        stop: a string, or up to 16, that end the answer; not part of it.
        stop_token_ids: tokens that end the answer.
        ignore_eos: go on after the model's end of sequence. Default false.
        n: number of choices, 1 to 16. Default 1.
        timeout: seconds for the whole request, retries included. Default: the client's.
        request_id: name in logs and traces. Default: made by the router.
        cache_salt: prompts share cached KV only under an equal salt.
        trace: ask for spans in the timeline.
    """

    model: str | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    seed: int | None
    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    n: int | None
    timeout: float | None
    request_id: str | None
    cache_salt: str | None
    trace: bool | None


_OF_REQUEST = ("model", "request_id", "cache_salt", "trace")
_OF_SAMPLING = tuple(field.name for field in inference_pb2.SamplingOptions.DESCRIPTOR.fields)


def _build(message: type[Any], field: str, value: object) -> Any:
    """`message(field=value)`, with an error that names the field."""
    try:
        return message(**{field: value})
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"{field}: {error}") from error


def _chat(messages: Messages) -> inference_pb2.Chat:
    chat = inference_pb2.Chat()
    for position, message in enumerate(messages):
        if isinstance(message, Message):
            parts: Mapping[str, str] = {"role": message.role, "content": message.content}
        else:
            parts = message
        if not isinstance(parts, Mapping) or parts.keys() != {"role", "content"}:
            raise InvalidRequestError(f"messages[{position}] needs role and content, and nothing else")
        built = inference_pb2.ChatMessage()
        for field, text in parts.items():
            built.MergeFrom(_build(inference_pb2.ChatMessage, field, text))
        chat.messages.append(built)
    return chat


def _set_input(
    request: inference_pb2.GenerateRequest | inference_pb2.TokenizeRequest,
    prompt: str | None,
    messages: Messages | None,
) -> None:
    if prompt is not None:
        request.MergeFrom(_build(type(request), "prompt", prompt))
    elif messages is not None:
        # CopyFrom alone would leave an empty chat unset.
        request.chat.SetInParent()
        request.chat.CopyFrom(_chat(messages))


def _require_one(**inputs: object) -> None:
    given = [name for name, value in inputs.items() if value is not None]
    if len(given) != 1:
        names = ", ".join(inputs)
        raise InvalidRequestError(f"exactly one of {names} is needed, not {', '.join(given) or 'none'}")


def generate_request(
    prompt: str | None,
    messages: Messages | None,
    token_ids: Sequence[int] | None,
    options: GenerateOptions,
) -> inference_pb2.GenerateRequest:
    """The message for one generation.

    Raises:
        InvalidRequestError: not exactly one input, or a value that the message cannot hold.
        TypeError: an option that does not exist.
    """
    _require_one(prompt=prompt, messages=messages, token_ids=token_ids)
    request = inference_pb2.GenerateRequest()
    _set_input(request, prompt, messages)
    if token_ids is not None:
        request.token_ids.SetInParent()
        request.token_ids.ids.extend(_build(inference_pb2.TokenIds, "ids", token_ids).ids)
    for name, value in options.items():
        if name == "stop" and isinstance(value, str):
            value = [value]
        if name in _OF_SAMPLING:
            if value is not None:
                request.sampling.MergeFrom(_build(inference_pb2.SamplingOptions, name, value))
        elif name in _OF_REQUEST:
            request.MergeFrom(_build(inference_pb2.GenerateRequest, name, value))
        elif name != "timeout":
            raise TypeError(f"unknown option {name!r}")
    return request


def tokenize_request(
    prompt: str | None, messages: Messages | None, model: str | None
) -> inference_pb2.TokenizeRequest:
    """The message for one tokenization. Raises InvalidRequestError."""
    _require_one(prompt=prompt, messages=messages)
    request = _build(inference_pb2.TokenizeRequest, "model", model)
    assert isinstance(request, inference_pb2.TokenizeRequest)
    _set_input(request, prompt, messages)
    return request
