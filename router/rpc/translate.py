"""Messages of `kvrelay.v1.Inference` to the shared request path and back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from google.protobuf import struct_pb2
from google.protobuf.message import Message
from pydantic import BaseModel, ValidationError

from kvrelay.v1 import common_pb2, inference_pb2
from router.choice_events import ChoiceDelta, ChoiceEnd, UsageCount
from router.errors import InvalidRequestError, from_validation
from router.generation import TokenLogprobs
from router.prepare import ClientRequest, new_request_id
from router.prompt_options import ChatOptions, PromptOptions
from router.prompts import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from router.resolve import prompt_logprobs_of
from router.rpc.answers import asked_calls, asked_of_answers, call_delta, template_message
from router.sampling_options import SamplingOptions
from router.speculation_options import SpeculationOptions
from router.text.token_bytes import TokenBytes

Options = TypeVar("Options", bound=BaseModel)

FINISH_REASONS = {
    "stop": common_pb2.FINISH_REASON_STOP,
    "length": common_pb2.FINISH_REASON_LENGTH,
    "tool_calls": common_pb2.FINISH_REASON_TOOL_CALLS,
}


def prompt_of(request: inference_pb2.GenerateRequest | inference_pb2.TokenizeRequest) -> Prompt:
    """The one input that is set, with its options. Raises InvalidRequestError."""
    options = prompt_options_of(request.prompt_options)
    kind = request.WhichOneof("input")
    if kind == "chat":
        return _chat_of(request.chat, options)
    for name in ChatOptions.model_fields.keys() - PromptOptions.model_fields.keys():
        if getattr(options, name) is not None:
            param = f"prompt_options.{name}"
            raise InvalidRequestError(f"{param} is for a chat.", param, "invalid_value")
    if isinstance(request, inference_pb2.GenerateRequest) and kind == "token_ids":
        return TokenPrompt(tuple(request.token_ids.ids), "token_ids")
    if kind == "prompt":
        return TextPrompt(request.prompt, add_special_tokens=options.add_special_tokens is not False)
    names = [field.name for field in request.DESCRIPTOR.oneofs_by_name["input"].fields]
    raise InvalidRequestError(f"One of {', '.join(names)} must be set.", "input", "missing_parameter")


def _chat_of(chat: inference_pb2.Chat, options: ChatOptions) -> ChatPrompt:
    if not chat.messages:
        raise InvalidRequestError("chat.messages is empty.", "chat.messages", "empty_prompt")
    messages: list[dict[str, object]] = []
    for position, message in enumerate(chat.messages):
        name = f"chat.messages[{position}]"
        if not message.role:
            param = f"{name}.role"
            raise InvalidRequestError(f"{param} must not be empty.", param, "missing_parameter")
        messages.append(template_message(message, name))
    calls = asked_calls(chat)
    tools = None if calls is None else calls.for_template()
    return ChatPrompt(tuple(messages), "chat.messages", options, tools)


def prompt_options_of(message: inference_pb2.PromptOptions) -> ChatOptions:
    """The options that are set. Raises InvalidRequestError."""
    return _validated(ChatOptions, _set_fields(message))


def sampling_of(sampling: inference_pb2.SamplingOptions) -> SamplingOptions:
    """The options that are set. Raises InvalidRequestError."""
    values = _set_fields(sampling)
    if "logit_bias" in values:
        values["logit_bias"] = {str(key): bias for key, bias in sampling.logit_bias.items()}
    return _validated(SamplingOptions, values)


def speculation_of(request: inference_pb2.GenerateRequest) -> SpeculationOptions | None:
    """The options that are set; None where none are. Raises InvalidRequestError."""
    if not request.HasField("speculation"):
        return None
    return _validated(SpeculationOptions, _set_fields(request.speculation), "speculation")


def prompt_top_of(asked: SamplingOptions) -> int | None:
    """Likeliest tokens to report in each place of the prompt; None where nothing is: as asked, and for an
    echo as many as of the answer."""
    return prompt_logprobs_of(asked) if asked.prompt_logprobs is None else asked.prompt_logprobs


def _set_fields(message: Message) -> dict[str, object]:
    """What a message of options says; names are those of the shared models."""
    values: dict[str, object] = {}
    for field, value in message.ListFields():
        if isinstance(value, struct_pb2.Struct):
            values[field.name] = {name: _json(inner) for name, inner in value.fields.items()}
        elif field.is_repeated:
            values[field.name] = list(value)
        else:
            values[field.name] = value
    return values


def _json(value: struct_pb2.Value) -> object:
    """A value of a Struct. Its numbers are doubles; whole ones are meant as integers."""
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return {name: _json(inner) for name, inner in value.struct_value.fields.items()}
        case "list_value":
            return [_json(inner) for inner in value.list_value.values]
        case _:
            return None


def _validated(kind: type[Options], values: dict[str, object], *within: str) -> Options:
    """Options of a message that clients know as the field `within`. Raises InvalidRequestError."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise from_validation(error, within) from None


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
    options = request.prompt_options
    truncate = options.truncate_prompt_tokens if options.HasField("truncate_prompt_tokens") else None
    return ClientRequest(
        model=request.model,
        prompts=(prompt_of(request),),
        sampling=sampling_of(request.sampling),
        request_id=request.request_id or new_request_id(),
        arrived_at=arrived_at,
        cache_salt=request.cache_salt,
        deadline=None if time_remaining_s is None else time.time() + time_remaining_s,
        trace=request.trace,
        priority=request.priority,
        truncate_prompt_tokens=truncate,
        answers=asked_of_answers(request),
        speculation=speculation_of(request),
    )


class ResponseWriter:
    """Writes the messages of one Generate call.

    Args:
        request_id: its name.
        prompt: its token ids.
        token_bytes: what tokens are called in log probabilities.
        num_top: likeliest tokens that were asked for in each place of the answer.
        prompt_top: the same for the prompt; None where its log probabilities were not asked for.
    """

    def __init__(
        self,
        request_id: str,
        prompt: Sequence[int],
        token_bytes: TokenBytes,
        num_top: int,
        prompt_top: int | None,
    ) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._token_bytes = token_bytes
        self._num_top = num_top
        self._prompt_top = prompt_top

    def delta(self, delta: ChoiceDelta) -> inference_pb2.GenerateResponse:
        """A message with what is new in a choice."""
        return inference_pb2.GenerateResponse(
            choice=delta.choice,
            text=delta.text,
            token_ids=delta.token_ids,
            request_id=self._request_id,
            logprobs=self._logprobs(delta.token_ids, delta.logprobs, self._num_top),
            reasoning=delta.reasoning,
            tool_calls=map(call_delta, delta.calls),
        )

    def end(self, end: ChoiceEnd, usage: UsageCount | None) -> inference_pb2.GenerateResponse:
        """A choice's last message; `usage` with the last one of the stream."""
        response = inference_pb2.GenerateResponse(
            choice=end.choice,
            finish_reason=FINISH_REASONS[end.finish_reason],
            timeline=end.timeline,
            request_id=self._request_id,
        )
        if self._prompt_top is not None:
            response.prompt_logprobs.extend(
                self._logprobs(self._prompt[1:], end.prompt_logprobs, self._prompt_top)
            )
        if usage is not None:
            response.usage.prompt_tokens = usage.prompt_tokens
            response.usage.completion_tokens = usage.completion_tokens
            response.usage.cached_tokens = usage.cached_tokens
            response.usage.reasoning_tokens = usage.reasoning_tokens
        return response

    def _logprobs(
        self, token_ids: Iterable[int], logprobs: Sequence[TokenLogprobs], num_top: int
    ) -> Iterator[inference_pb2.TokenLogprob]:
        for token_id, position in zip(token_ids, logprobs, strict=False):
            yield inference_pb2.TokenLogprob(
                token_id=token_id,
                token=self._token_bytes[token_id],
                logprob=position.logprob,
                rank=position.rank,
                top=[
                    inference_pb2.LikelyToken(token_id=other, token=self._token_bytes[other], logprob=logprob)
                    for other, logprob in position.top[:num_top]
                ],
            )
