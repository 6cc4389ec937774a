"""Events of the shared request path to OpenAI's bodies: one class for each endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from router.http.responses import (
    ChatCompletion,
    ChatCompletionChunk,
    ChunkChoice,
    Completion,
    CompletionChoice,
    Delta,
    Usage,
)
from router.serving import ChoiceEnd, UsageCount


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every body and chunk of one request repeats."""

    request_id: str
    created: int
    model: str
    system_fingerprint: str


def usage_body(usage: UsageCount) -> Usage:
    """Usage of a request that has ended."""
    return {
        **running_usage(usage.prompt_tokens, usage.completion_tokens),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
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

    def whole(
        self, texts: Sequence[str], ends: Sequence[ChoiceEnd], usage: Usage
    ) -> ChatCompletion | Completion:
        """The body of an answer that does not stream. `texts` and `ends` are in the order of the choices."""
        ...

    def delta(self, choice: int, text: str) -> Chunk | None:
        """A chunk with new text; None where there is nothing to say."""
        ...

    def end(self, choice: int, end: ChoiceEnd) -> Chunk:
        """A choice's last chunk."""
        ...

    def closing(self, usage: Usage) -> Chunk:
        """The chunk without choices that carries the usage."""
        ...


class ChatFormat:
    """`/v1/chat/completions`."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._id = f"chatcmpl-{envelope.request_id}"
        self._begun: set[int] = set()

    def whole(self, texts: Sequence[str], ends: Sequence[ChoiceEnd], usage: Usage) -> ChatCompletion:
        """See AnswerFormat."""
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._envelope.created,
            "model": self._envelope.model,
            "system_fingerprint": self._envelope.system_fingerprint,
            "choices": [
                {
                    "index": index,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": end.finish_reason,
                }
                for index, (text, end) in enumerate(zip(texts, ends, strict=True))
            ],
            "usage": usage,
        }

    def delta(self, choice: int, text: str) -> ChatCompletionChunk | None:
        """The first chunk of a choice names the role and comes even without text: prefill is over."""
        if choice not in self._begun:
            self._begun.add(choice)
            return self._choice(choice, {"role": "assistant", "content": text}, None)
        return self._choice(choice, {"content": text}, None) if text else None

    def end(self, choice: int, end: ChoiceEnd) -> ChatCompletionChunk:
        """See AnswerFormat."""
        return self._choice(choice, {}, end)

    def closing(self, usage: Usage) -> ChatCompletionChunk:
        """See AnswerFormat."""
        return {**self._chunk([]), "usage": usage}

    def _choice(self, choice: int, delta: Delta, end: ChoiceEnd | None) -> ChatCompletionChunk:
        reason = end.finish_reason if end else None
        return self._chunk([{"index": choice, "delta": delta, "logprobs": None, "finish_reason": reason}])

    def _chunk(self, choices: list[ChunkChoice]) -> ChatCompletionChunk:
        return {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._envelope.created,
            "model": self._envelope.model,
            "system_fingerprint": self._envelope.system_fingerprint,
            "choices": choices,
        }


class CompletionFormat:
    """`/v1/completions`."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._id = f"cmpl-{envelope.request_id}"

    def whole(self, texts: Sequence[str], ends: Sequence[ChoiceEnd], usage: Usage) -> Completion:
        """See AnswerFormat."""
        choices = [
            self._choice(index, text, end) for index, (text, end) in enumerate(zip(texts, ends, strict=True))
        ]
        return {**self._body(choices), "usage": usage}

    def delta(self, choice: int, text: str) -> Completion | None:
        """See AnswerFormat."""
        return self._body([self._choice(choice, text, None)]) if text else None

    def end(self, choice: int, end: ChoiceEnd) -> Completion:
        """See AnswerFormat."""
        return self._body([self._choice(choice, "", end)])

    def closing(self, usage: Usage) -> Completion:
        """See AnswerFormat."""
        return {**self._body([]), "usage": usage}

    def _choice(self, choice: int, text: str, end: ChoiceEnd | None) -> CompletionChoice:
        reason = end.finish_reason if end else None
        return {"index": choice, "text": text, "logprobs": None, "finish_reason": reason}

    def _body(self, choices: list[CompletionChoice]) -> Completion:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._envelope.created,
            "model": self._envelope.model,
            "system_fingerprint": self._envelope.system_fingerprint,
            "choices": choices,
        }
