"""`<think>`...`</think>` before an answer: the split into reasoning and content, while text comes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from router.text.markers import held_back

START = "<think>"
END = "</think>"


@dataclass(frozen=True, slots=True)
class Split:
    """New text of both kinds."""

    reasoning: str = ""
    content: str = ""


class _State(Enum):
    BEFORE = "before"
    OPENING = "opening"
    INSIDE = "inside"
    AFTER = "after"
    CONTENT = "content"


def prompt_opens(prompt: str) -> bool:
    """Whether a rendered chat ends inside the reasoning that the model is to write."""
    return prompt.rstrip().endswith(START)


class ThinkSplitter:
    """Reads one answer.

    Reasoning stands at an answer's very start or nowhere; a marker later is content. White space next to the
    markers belongs to neither part. The split does not depend on how the text is cut into pieces.

    Args:
        opened: the prompt ends inside the reasoning.
        keep_space: white space after the reasoning belongs to the content.
    """

    def __init__(self, *, opened: bool, keep_space: bool = False) -> None:
        self._state = _State.OPENING if opened else _State.BEFORE
        self._keep_space = keep_space
        self._pending = ""
        self._begun = False

    @property
    def reasoning(self) -> bool:
        """Whether the reasoning has begun and not ended."""
        return self._state in (_State.OPENING, _State.INSIDE)

    def add(self, text: str) -> Split:
        """Takes the next piece."""
        self._pending += text
        if self._state in (_State.BEFORE, _State.OPENING):
            self._open()
        reasoning = self._inside() if self._state is _State.INSIDE else ""
        if self._state is _State.AFTER:
            self._after()
        content = ""
        if self._state is _State.CONTENT:
            content, self._pending = self._pending, ""
        return Split(reasoning, content)

    def finish(self) -> Split:
        """What was held back, once the text is complete."""
        pending, self._pending = self._pending, ""
        match self._state:
            case _State.BEFORE:
                return Split(content=pending)
            case _State.OPENING | _State.INSIDE:
                return Split(reasoning=pending.strip() if not self._begun else pending.rstrip())
            case _:
                return Split()

    def _open(self) -> None:
        """Finds out whether the answer starts with reasoning. A prompt that opened it may be repeated."""
        text = self._pending.lstrip()
        if text != START and START.startswith(text):
            return
        if text.startswith(START):
            self._pending = text[len(START) :]
            self._state = _State.INSIDE
        else:
            self._state = _State.INSIDE if self._state is _State.OPENING else _State.CONTENT

    def _inside(self) -> str:
        if not self._begun:
            self._pending = self._pending.lstrip()
            self._begun = bool(self._pending)
        position = self._pending.find(END)
        if position >= 0:
            reasoning, self._pending = self._pending[:position], self._pending[position + len(END) :]
            self._state = _State.AFTER
            return reasoning.rstrip()
        safe = len(self._pending) - held_back(self._pending, END)
        reasoning, self._pending = self._pending[:safe], self._pending[safe:]
        return reasoning

    def _after(self) -> None:
        if not self._keep_space:
            self._pending = self._pending.lstrip()
        if self._pending:
            self._state = _State.CONTENT
