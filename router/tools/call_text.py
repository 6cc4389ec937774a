"""One call as a model writes it: a JSON object with the function's name and its arguments."""

from __future__ import annotations

import json
from collections.abc import Set

from router.tools.json_scanner import JsonScanner, Progress

_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", "type", "id", *_ARGUMENTS)


class CallText:
    """Reads a call character by character.

    A call has begun once its name is known and its arguments' object has started; from then on they can be
    shown as they come. Arguments that are written as a string with an object inside count as that object,
    none at all as the empty one; they are shown when the call is complete.

    Args:
        names: functions that there are: an object with another name, or with members that calls do not
            have, is no call. None takes any.

    Attributes:
        name: the function's name; empty until it is known.
        begun: the call can be shown.
        complete: so are all of its arguments.
    """

    def __init__(self, names: Set[str] | None) -> None:
        self._names = names
        self._scanner = JsonScanner()
        self._text: list[str] = []
        self._start = 0
        self._key = ""
        self._in_value = False
        self._streams = False
        self._arguments: list[str] = []
        self._has_arguments = False
        self.name = ""
        self.begun = False
        self.complete = False

    def push(self, character: str) -> Progress:
        """Takes the next character. Must not be called again after DONE or BAD.

        BAD says that this is no call or, once it has begun, that its text is broken from here on.
        """
        depth, expected = self._scanner.depth, self._scanner.expects
        progress = self._scanner.push(character)
        if progress is Progress.BAD:
            return progress
        self._text.append(character)
        position = len(self._text) - 1
        if depth == 1 and character == '"' and expected.startswith("key"):
            self._start = position
        elif self._scanner.expects == "colon" and expected == "string" and depth == 1:
            self._key = json.loads(self._since_start())
            if self._names is not None and self._key not in _KEYS:
                return Progress.BAD
        elif depth == 1 and expected == "value" and self._scanner.expects != "value":
            self._start = position
            self._in_value = True
            if not self._begin_value(character):
                return Progress.BAD
        if self._streams:
            self._arguments.append(character)
        if self._in_value and self._scanner.depth <= 1 and self._scanner.expects == "next":
            # A number or a word ends at what follows it.
            text = self._since_start(len(self._text) - (expected == "scalar" and depth == 1))
            self._in_value = self._streams = False
            if not self._end_value(text):
                return Progress.BAD
        self._show_when_ready()
        if progress is Progress.DONE:
            return progress if self._finish() else Progress.BAD
        return progress

    def take(self) -> str:
        """Text of the arguments that is new since the last time; empty before the call has begun."""
        if not self.begun:
            return ""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def _since_start(self, end: int | None = None) -> str:
        return "".join(self._text[self._start : end])

    def _begin_value(self, character: str) -> bool:
        if self._key in _ARGUMENTS:
            if self._has_arguments:
                return False
            self._has_arguments = True
            self._streams = character == "{"
        return True

    def _end_value(self, text: str) -> bool:
        if self._key == "name":
            name = json.loads(text) if text.startswith('"') else ""
            if self.name or (self._names is not None and name not in self._names):
                return False
            self.name = name
            return bool(name)
        if self._key in _ARGUMENTS and not text.startswith("{"):
            written = "{}" if text == "null" else json.loads(text) if text.startswith('"') else text
            if not _is_object(written):
                return False
            self._arguments.append(written)
        if self._key in _ARGUMENTS:
            self.complete = True
        return True

    def _show_when_ready(self) -> None:
        if self.name and self._has_arguments and (self._streams or self.complete):
            self.begun = True

    def _finish(self) -> bool:
        if not self.name:
            return False
        if not self._has_arguments:
            self._arguments.append("{}")
        self.begun = self.complete = True
        return True


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
