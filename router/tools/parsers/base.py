"""Finds calls in an answer's text while it comes. The families differ in a `CallForm` alone.

One character decides at a time, so the result does not depend on how the text is cut into pieces. Text that
turns out to be no call is content again, with its markers. Only white space next to calls is dropped.
"""

from __future__ import annotations

import secrets
from collections.abc import Set
from dataclasses import dataclass

from router.text.markers import held_back
from router.tools.call_text import CallText
from router.tools.json_scanner import Progress


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a family marks a call, whose body is a JSON object.

    Attributes:
        arguments: name of the member that holds the arguments.
        start: marker before a call.
        end: marker after it; empty where there is none.
        bare: a call may also stand at the start of an answer without its marker, or follow another one.
        hidden: the markers are no part of the text where a call turns out to be none.
        separator: character between two calls, beside white space; empty for none.
        parallel: the family writes several calls in one answer.
        lead: white space around the object where calls are generated under a grammar.
        between: the same between two calls.
    """

    arguments: str
    start: str
    end: str = ""
    bare: bool = False
    hidden: bool = False
    separator: str = ""
    parallel: bool = False
    lead: str = ""
    between: str = ""


@dataclass(frozen=True, slots=True)
class ContentPiece:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call begins. `index` counts the answer's calls from 0."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, the model's own text: JSON unless the model erred or was cut off."""

    index: int
    text: str


CallPiece = ContentPiece | CallBegin | CallArguments


class CallParser:
    """Reads one answer.

    Args:
        form: the family's.
        names: functions that there are. A bare call of another is content; a marked one stays a call.
        single: nothing is read after the first call.

    Attributes:
        calls: calls begun.
        done: the one call that was to be read is complete.
    """

    def __init__(self, form: CallForm, names: Set[str], *, single: bool) -> None:
        self._form = form
        self._names = names
        self._single = single
        self._state = "between" if form.bare else "outside"
        self._pending = ""
        self._call: CallText | None = None
        self._shown = False
        # What becomes content again where there is no call: white space, marker and text so far.
        self._raw: list[str] = []
        self._out: list[CallPiece] = []
        self.calls = 0
        self.done = False

    def add(self, text: str) -> list[CallPiece]:
        """What the next piece of text adds. Nothing once done."""
        self._pending += text
        while self._pending and not self.done and self._advance():
            pass
        return self._taken()

    def finish(self) -> list[CallPiece]:
        """What was held back, once the text is complete."""
        while not self.done:
            while self._pending and self._advance():
                pass
            if self._state == "call" and not self._shown:
                self._not_a_call("")
                continue
            if self._state == "broken":
                self._arguments(self._pending)
            elif self._state == "outside":
                self._content(self._pending)
            elif self._state == "between" and not self.calls:
                self._content("".join(self._raw) + self._pending)
            break
        self._pending = ""
        return self._taken()

    def _taken(self) -> list[CallPiece]:
        out, self._out = self._out, []
        return out

    def _advance(self) -> bool:
        """Takes some of the pending text; False where more of it is needed."""
        match self._state:
            case "outside":
                return self._outside()
            case "between":
                return self._between()
            case "call":
                return self._inside()
            case "closing":
                return self._closing()
            case _:
                return self._broken()

    def _outside(self) -> bool:
        position = self._pending.find(self._form.start)
        if position < 0:
            safe = len(self._pending) - held_back(self._pending, self._form.start)
            self._content(self._pending[:safe])
            self._pending = self._pending[safe:]
            return False
        before = self._pending[:position]
        content = before.rstrip()
        self._content(content)
        self._raw = [before[len(content) :]]
        self._pending = self._pending[position:]
        self._open_marker()
        return True

    def _open_marker(self) -> None:
        if not self._form.hidden:
            self._raw.append(self._form.start)
        self._pending = self._pending[len(self._form.start) :]
        self._begin_call()

    def _begin_call(self) -> None:
        self._state = "call"
        self._call = CallText(self._names if self._form.bare else None)
        self._shown = False

    def _between(self) -> bool:
        """At the start of an answer or after a call, where white space does not count yet."""
        start = self._form.start
        if self._pending.startswith(start):
            self._open_marker()
            return True
        if start.startswith(self._pending):
            return False
        character = self._pending[0]
        if character.isspace() or (self.calls and character == self._form.separator):
            self._raw.append(character)
            self._pending = self._pending[1:]
            return True
        if self._form.bare and character == "{":
            self._begin_call()
            return True
        # White space after a call is dropped, a separator that separates nothing is not.
        held = "".join(self._raw)
        self._content(held.lstrip() if self.calls else held)
        self._raw = []
        self._state = "outside"
        return True

    def _inside(self) -> bool:
        assert self._call is not None
        for position, character in enumerate(self._pending):
            progress = self._call.push(character)
            if progress is Progress.BAD:
                self._show()
                self._pending = self._pending[position:]
                self._spoiled()
                return True
            self._raw.append(character)
            if progress is Progress.DONE:
                self._show()
                self._pending = self._pending[position + 1 :]
                self._end_call()
                return True
        self._show()
        self._pending = ""
        return False

    def _show(self) -> None:
        assert self._call is not None
        if self._call.begun and not self._shown:
            self._shown = True
            self._out.append(CallBegin(self.calls, f"call_{secrets.token_hex(12)}", self._call.name))
            self.calls += 1
        if self._shown:
            self._arguments(self._call.take())

    def _spoiled(self) -> None:
        """The pending text does not go on as a call."""
        assert self._call is not None
        if not self._shown:
            self._not_a_call(self._pending)
        elif self._call.complete:
            self._end_call()
        elif self._form.end:
            self._state = "broken"
        else:
            self._arguments(self._pending)
            self._pending = ""
            self._state = "broken"

    def _not_a_call(self, rest: str) -> None:
        """The marker, or a bare beginning, is content; a marker inside what came after it may open a call."""
        raw = "".join(self._raw)
        kept = len(raw) - len(raw.lstrip())
        cut = kept + len(self._form.start) if raw[kept:].startswith(self._form.start) else len(raw)
        self._content(raw[:cut])
        self._pending = raw[cut:] + rest
        self._raw = []
        self._call = None
        self._state = "outside"

    def _end_call(self) -> None:
        self._raw = []
        self._call = None
        self._state = "closing" if self._form.end else "between"
        self.done = self._single and not self._form.end

    def _closing(self) -> bool:
        text = self._pending.lstrip()
        if text.startswith(self._form.end):
            self._pending = text[len(self._form.end) :]
            self.done = self._single
        elif self._form.end.startswith(text):
            return False
        else:
            self.done = self._single
        self._state = "between"
        return True

    def _broken(self) -> bool:
        """Arguments that are no JSON any more: the model's text, up to the end of the call."""
        if not self._form.end:
            self._arguments(self._pending)
            self._pending = ""
            return False
        position = self._pending.find(self._form.end)
        if position < 0:
            safe = len(self._pending) - held_back(self._pending, self._form.end)
            self._arguments(self._pending[:safe])
            self._pending = self._pending[safe:]
            return False
        self._arguments(self._pending[:position].rstrip())
        self._pending = self._pending[position:]
        self._raw = []
        self._state = "closing"
        return True

    def _content(self, text: str) -> None:
        if text:
            self._out.append(ContentPiece(text))

    def _arguments(self, text: str) -> None:
        if text:
            self._out.append(CallArguments(self.calls - 1, text))
