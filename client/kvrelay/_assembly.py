"""From the stream's messages to chunks and the final generation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace

from kvrelay.errors import ServerError
from kvrelay.types import (
    Choice,
    Chunk,
    FinishReason,
    Generation,
    LikelyToken,
    Span,
    Timeline,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from kvrelay.v1 import common_pb2, inference_pb2

_REASONS = {
    common_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    common_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    common_pb2.FINISH_REASON_TOOL_CALLS: FinishReason.TOOL_CALLS,
    common_pb2.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
    common_pb2.FINISH_REASON_DEADLINE: FinishReason.DEADLINE,
    common_pb2.FINISH_REASON_ERROR: FinishReason.ERROR,
}


def _span(message: common_pb2.Span) -> Span:
    return Span(**{each.name: getattr(message, each.name) for each in fields(Span)})


def _timeline(message: common_pb2.Timeline) -> Timeline:
    values = {each.name: getattr(message, each.name) for each in fields(Timeline)}
    return Timeline(**{**values, "spans": tuple(_span(span) for span in message.spans)})


def _logprobs(messages: Iterable[inference_pb2.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            message.token_id,
            message.token,
            message.logprob,
            message.rank,
            tuple(LikelyToken(likely.token_id, likely.token, likely.logprob) for likely in message.top),
        )
        for message in messages
    )


@dataclass(slots=True)
class _Part:
    """A choice in the making."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    timeline: Timeline | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def take_call(self, delta: ToolCallDelta) -> None:
        """Raises ServerError for a call that has no beginning."""
        if delta.index == len(self.calls) and delta.id:
            self.calls.append(ToolCall(delta.id, delta.name, ""))
        if delta.index >= len(self.calls):
            raise ServerError(f"the server went on with tool call {delta.index}, which it never began")
        call = self.calls[delta.index]
        self.calls[delta.index] = replace(call, arguments=call.arguments + delta.arguments)


class Assembly:
    """Collects the messages of one stream."""

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}
        self._usage: Usage | None = None
        self._request_id = ""

    def add(self, response: inference_pb2.GenerateResponse) -> Chunk:
        """Takes the next message. Raises ServerError where it contradicts the former ones."""
        part = self._parts.setdefault(response.choice, _Part())
        if part.finish_reason is not None and (response.text or response.token_ids):
            raise ServerError(f"the server went on with choice {response.choice} after its end")
        part.texts.append(response.text)
        part.token_ids.extend(response.token_ids)
        logprobs = _logprobs(response.logprobs)
        part.logprobs.extend(logprobs)
        if response.prompt_logprobs:
            part.prompt_logprobs = _logprobs(response.prompt_logprobs)
        reason = _REASONS.get(response.finish_reason)
        if reason is not None:
            part.finish_reason = reason
        part.reasoning.append(response.reasoning)
        calls = tuple(
            ToolCallDelta(delta.index, delta.id, delta.name, delta.arguments) for delta in response.tool_calls
        )
        for delta in calls:
            part.take_call(delta)
        if response.HasField("timeline"):
            part.timeline = _timeline(response.timeline)
        if response.HasField("usage"):
            usage = response.usage
            self._usage = Usage(**{each.name: getattr(usage, each.name) for each in fields(Usage)})
        self._request_id = response.request_id or self._request_id
        return Chunk(
            choice=response.choice,
            text=response.text,
            token_ids=tuple(response.token_ids),
            finish_reason=reason,
            logprobs=logprobs,
            reasoning=response.reasoning,
            tool_calls=calls,
        )

    def finish(self) -> Generation:
        """The result, once the stream has ended. Raises ServerError where something is missing."""
        if self._usage is None or not self._parts:
            raise ServerError("the server ended the stream without its last message")
        choices = []
        for index, part in sorted(self._parts.items()):
            if part.finish_reason is None:
                raise ServerError(f"the server ended the stream before the end of choice {index}")
            text = "".join(part.texts)
            choices.append(
                Choice(
                    index,
                    text,
                    tuple(part.token_ids),
                    part.finish_reason,
                    part.timeline,
                    tuple(part.logprobs),
                    part.prompt_logprobs,
                    "".join(part.reasoning),
                    tuple(part.calls),
                )
            )
        return Generation(self._request_id, tuple(choices), self._usage)
