"""Answers of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence

from router.answer_text import ShownToken
from router.choice_events import ChoiceDelta, ChoiceEnd
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
        """See AnswerFormat."""
        ids = self._view.token_ids and delta.token_ids
        if not (delta.text or delta.shown or ids):
            return None
        choice = self._choice(delta.choice, delta.text)
        if self._view.prepared.reports_logprobs:
            choice["logprobs"] = self._view.writer.completion(delta.shown, self._echo(delta.choice))
        if self._view.token_ids:
            choice["token_ids"] = list(delta.token_ids)
            if delta.choice not in self._begun:
                choice["prompt_token_ids"] = list(self._view.prepared.prompt_of(delta.choice))
        self._begun.add(delta.choice)
        return self._body([choice])

    def end(self, end: ChoiceEnd) -> Completion:
        """See AnswerFormat."""
        choice = self._choice(end.choice, "")
        choice["finish_reason"] = end.finish_reason
        return self._body([choice])

    def closing(self, usage: Usage) -> Completion:
        """See AnswerFormat."""
        return {**self._body([]), "usage": usage}

    def _whole_choice(self, index: int, whole: WholeChoice) -> CompletionChoice:
        view = self._view
        prompt = view.prepared.prompt_of(index)
        choice = self._choice(index, whole.text)
        choice["finish_reason"] = whole.end.finish_reason
        if view.prepared.reports_logprobs:
            choice["logprobs"] = self._logprobs(index, prompt, whole.shown, whole.end)
        if view.prompt_logprobs is not None:
            choice["prompt_logprobs"] = view.writer.prompt(
                prompt, whole.end.prompt_logprobs, view.prompt_logprobs
            )
        if view.token_ids:
            choice["prompt_token_ids"] = list(prompt)
            choice["token_ids"] = list(whole.token_ids)
        return choice

    def _logprobs(
        self, index: int, prompt: Sequence[int], shown: Sequence[ShownToken], end: ChoiceEnd
    ) -> CompletionLogprobs:
        answer = self._view.writer.completion(shown, self._echo(index))
        prepared = self._view.prepared
        if not prepared.echo:
            return answer
        before = self._view.writer.echo(
            prompt, end.prompt_logprobs, prepared.echo[index // prepared.num_choices]
        )
        return {
            "tokens": before["tokens"] + answer["tokens"],
            "token_logprobs": before["token_logprobs"] + answer["token_logprobs"],
            "top_logprobs": before["top_logprobs"] + answer["top_logprobs"],
            "text_offset": before["text_offset"] + answer["text_offset"],
        }

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
