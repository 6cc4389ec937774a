"""What both endpoints' ways to write answers share: one class for each endpoint implements AnswerFormat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from router.answer_text import ShownToken
from router.choice_events import ChoiceDelta, ChoiceEnd, UsageCount
from router.http.logprobs import LogprobsWriter
from router.http.responses import ChatCompletion, ChatCompletionChunk, Completion, Usage
from router.prepare import PreparedRequest
from router.tools.parsers.base import CallArguments, CallBegin


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every body and chunk of one request repeats."""

    request_id: str
    created: int
    model: str
    system_fingerprint: str


@dataclass(frozen=True, slots=True)
class AnswerView:
    """What of an answer is written beside its text.

    Attributes:
        prepared: the request.
        writer: writes log probabilities.
        prompt_logprobs: likeliest tokens to report in each place of the prompt; None reports nothing.
        token_ids: write token ids.
    """

    prepared: PreparedRequest
    writer: LogprobsWriter
    prompt_logprobs: int | None
    token_ids: bool


@dataclass(frozen=True, slots=True)
class WholeChoice:
    """One choice that has ended. The fields are those of ChoiceDelta, put together."""

    text: str
    token_ids: Sequence[int]
    shown: Sequence[ShownToken]
    reasoning: str
    calls: Sequence[CallBegin | CallArguments]
    end: ChoiceEnd


def usage_body(usage: UsageCount) -> Usage:
    """Usage of a request that has ended."""
    return {
        **running_usage(usage.prompt_tokens, usage.completion_tokens),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def running_usage(prompt_tokens: int, completion_tokens: int) -> Usage:
    """Usage of a request that still runs."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


Chunk = ChatCompletionChunk | Completion


class AnswerFormat(Protocol):
    """One endpoint's way to write answers. One object for each request."""

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> ChatCompletion | Completion:
        """The body of an answer that does not stream; the choices in their order."""
        ...

    def delta(self, delta: ChoiceDelta) -> Chunk | None:
        """A chunk with what is new; None where there is nothing to say."""
        ...

    def end(self, end: ChoiceEnd) -> Chunk:
        """A choice's last chunk."""
        ...

    def closing(self, usage: Usage) -> Chunk:
        """The chunk without choices that carries the usage."""
        ...
