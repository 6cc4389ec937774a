"""Answers of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence

from router.choice_events import ChoiceDelta, ChoiceEnd
from router.generation import TokenLogprobs
from router.http.formats import AnswerView, Envelope, WholeChoice
from router.http.responses import Completion, CompletionChoice, CompletionLogprobs, Usage


class CompletionFormat:
    """Implements `router.http.formats.AnswerFormat`."""

    def __init__(self, envelope: Envelope, view: AnswerView) -> None:
        self._envelope = envelope
        self._view = view
        self._id = f"cmpl-{envelope.request_id}"
        self._begun: set[int] = set()

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> Completion:
        """See AnswerFormat."""
        bodies = [self._whole_choice(index, choice) for index, choice in enumerate(choices)]
        return {**self._body(bodies), "usage": usage}

    def delta(self, delta: ChoiceDelta) -> Completion | None:
        """See AnswerFormat. The first chunk of a choice also tells of its prompt."""
        first = delta.choice not in self._begun
        ids = self._view.token_ids and delta.token_ids
        if not (delta.text or delta.shown or ids or (first and self._tells_prompt)):
            return None
        choice = self._choice(delta.choice, delta.text)
        if self._view.prepared.reports_logprobs:
            choice["logprobs"] = self._view.writer.completion(delta.shown, self._echo(delta.choice))
        if self._view.token_ids:
            choice["token_ids"] = list(delta.token_ids)
        if first:
            self._begin(choice, delta.prompt_logprobs)
        return self._body([choice])

    def end(self, end: ChoiceEnd) -> Completion:
        """See AnswerFormat."""
        choice = self._choice(end.choice, "")
        choice["finish_reason"] = end.finish_reason
        if end.choice not in self._begun and self._tells_prompt:
            self._begin(choice, end.prompt_logprobs)
        return self._body([choice])

    def closing(self, usage: Usage) -> Completion:
        """See AnswerFormat."""
        return {**self._body([]), "usage": usage}

    def _whole_choice(self, index: int, whole: WholeChoice) -> CompletionChoice:
        view = self._view
        choice = self._choice(index, whole.text)
        choice["finish_reason"] = whole.end.finish_reason
        if view.prepared.reports_logprobs:
            choice["logprobs"] = view.writer.completion(whole.shown, self._echo(index))
        if view.token_ids:
            choice["token_ids"] = list(whole.token_ids)
        self._begin(choice, whole.end.prompt_logprobs)
        return choice

    def _begin(self, choice: CompletionChoice, logprobs: Sequence[TokenLogprobs]) -> None:
        """Adds what is told of a choice's prompt, once."""
        view, prepared, index = self._view, self._view.prepared, choice["index"]
        self._begun.add(index)
        prompt = prepared.prompt_of(index)
        if prepared.echo and prepared.reports_logprobs:
            text = prepared.echo[index // prepared.num_choices]
            choice["logprobs"] = _joined(view.writer.echo(prompt, logprobs, text), choice["logprobs"])
        if view.prompt_logprobs is not None:
            choice["prompt_logprobs"] = view.writer.prompt(prompt, logprobs, view.prompt_logprobs)
        if view.token_ids:
            choice["prompt_token_ids"] = list(prompt)

    @property
    def _tells_prompt(self) -> bool:
        """Whether a choice has something to say although its answer has no text yet."""
        prepared = self._view.prepared
        return self._view.prompt_logprobs is not None or bool(prepared.echo and prepared.reports_logprobs)

    def _echo(self, choice: int) -> int:
        """Characters of the prompt before the answer."""
        prepared = self._view.prepared
        return len(prepared.echo[choice // prepared.num_choices]) if prepared.echo else 0

    def _choice(self, index: int, text: str) -> CompletionChoice:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None}

    def _body(self, choices: list[CompletionChoice]) -> Completion:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._envelope.created,
            "model": self._envelope.model,
            "system_fingerprint": self._envelope.system_fingerprint,
            "choices": choices,
        }


def _joined(prompt: CompletionLogprobs, answer: CompletionLogprobs | None) -> CompletionLogprobs:
    if answer is None:
        return prompt
    return {
        "tokens": prompt["tokens"] + answer["tokens"],
        "token_logprobs": prompt["token_logprobs"] + answer["token_logprobs"],
        "top_logprobs": prompt["top_logprobs"] + answer["top_logprobs"],
        "text_offset": prompt["text_offset"] + answer["text_offset"],
    }
