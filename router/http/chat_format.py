"""Answers of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence

from router.answer_text import ShownToken
from router.choice_events import ChoiceDelta, ChoiceEnd
from router.generation import TokenLogprobs
from router.http.call_bodies import call_deltas, whole_calls
from router.http.formats import AnswerView, Envelope, WholeChoice
from router.http.responses import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    ChunkChoice,
    Delta,
    Usage,
)


class ChatFormat:
    """Implements `router.http.formats.AnswerFormat`."""

    def __init__(self, envelope: Envelope, view: AnswerView) -> None:
        self._envelope = envelope
        self._view = view
        self._id = f"chatcmpl-{envelope.request_id}"
        self._begun: set[int] = set()

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> ChatCompletion:
        """See AnswerFormat."""
        body: ChatCompletion = {
            "id": self._id,
            "object": "chat.completion",
            "created": self._envelope.created,
            "model": self._envelope.model,
            "system_fingerprint": self._envelope.system_fingerprint,
            "choices": [self._whole_choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage,
        }
        self._tell_prompt(body, choices[0].end.prompt_logprobs)
        return body

    def delta(self, delta: ChoiceDelta) -> ChatCompletionChunk | None:
        """The first chunk of a choice names the role and comes even without text: prefill is over.

        The first of all also tells of the prompt.
        """
        first = delta.choice not in self._begun
        content = _delta_of(delta, first=first)
        if not (content or delta.shown or (self._view.token_ids and delta.token_ids)):
            return None
        choice: ChunkChoice = {
            "index": delta.choice,
            "delta": content,
            "logprobs": self._logprobs(delta.shown),
            "finish_reason": None,
        }
        if self._view.token_ids:
            choice["token_ids"] = list(delta.token_ids)
        chunk = self._chunk([choice])
        if not self._begun:
            self._tell_prompt(chunk, delta.prompt_logprobs)
        self._begun.add(delta.choice)
        return chunk

    def end(self, end: ChoiceEnd) -> ChatCompletionChunk:
        """See AnswerFormat."""
        chunk = self._chunk(
            [{"index": end.choice, "delta": {}, "logprobs": None, "finish_reason": end.finish_reason}]
        )
        if not self._begun:
            self._tell_prompt(chunk, end.prompt_logprobs)
        self._begun.add(end.choice)
        return chunk

    def closing(self, usage: Usage) -> ChatCompletionChunk:
        """See AnswerFormat."""
        return {**self._chunk([]), "usage": usage}

    def _tell_prompt(
        self, body: ChatCompletion | ChatCompletionChunk, logprobs: Sequence[TokenLogprobs]
    ) -> None:
        """Adds what is told of the prompt, which all choices share."""
        view, prompt = self._view, self._view.prepared.prompt_of(0)
        if view.prompt_logprobs is not None:
            body["prompt_logprobs"] = view.writer.prompt(prompt, logprobs, view.prompt_logprobs)
        if view.token_ids:
            body["prompt_token_ids"] = list(prompt)

    def _whole_choice(self, index: int, choice: WholeChoice) -> ChatChoice:
        body: ChatChoice = {
            "index": index,
            "message": _message_of(choice),
            "logprobs": self._logprobs(choice.shown),
            "finish_reason": choice.end.finish_reason,
        }
        if self._view.token_ids:
            body["token_ids"] = list(choice.token_ids)
        return body

    def _logprobs(self, shown: Sequence[ShownToken]) -> ChatLogprobs | None:
        return self._view.writer.chat(shown) if self._view.prepared.reports_logprobs else None

    def _chunk(self, choices: list[ChunkChoice]) -> ChatCompletionChunk:
        return {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._envelope.created,
            "model": self._envelope.model,
            "system_fingerprint": self._envelope.system_fingerprint,
            "choices": choices,
        }


def _delta_of(delta: ChoiceDelta, *, first: bool) -> Delta:
    new: Delta = {}
    if first:
        new = {"role": "assistant", "content": delta.text}
    elif delta.text:
        new = {"content": delta.text}
    if delta.reasoning:
        new["reasoning"] = new["reasoning_content"] = delta.reasoning
    if delta.calls:
        new["tool_calls"] = call_deltas(delta.calls)
    return new


def _message_of(choice: WholeChoice) -> AssistantMessage:
    calls = whole_calls(choice.calls)
    message: AssistantMessage = {
        "role": "assistant",
        "content": choice.text or (None if calls else ""),
        "refusal": None,
    }
    if choice.reasoning:
        message["reasoning"] = message["reasoning_content"] = choice.reasoning
    if calls:
        message["tool_calls"] = calls
    return message
