"""RFC 8259, one character at a time, so that a call can be shown while it is being written."""

from __future__ import annotations

import re
from enum import Enum

_SPACE = " \t\n\r"
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = ("true", "false", "null")
_HEX = frozenset("0123456789abcdefABCDEF")


class Progress(Enum):
    """What a character did."""

    MORE = "more"
    DONE = "done"
    BAD = "bad"


class JsonScanner:
    """Checks one JSON object.

    Attributes:
        expects: what may come next: "object", "key", "key or end", "colon", "value", "value or end", "next"
            (a comma or an end), or the rest of a "string" or a "scalar".
    """

    def __init__(self) -> None:
        self._stack: list[str] = []
        self.expects = "object"
        self._scalar = ""
        self._after_string = ""
        self._escape = ""

    @property
    def depth(self) -> int:
        """Open objects and lists."""
        return len(self._stack)

    def push(self, character: str) -> Progress:
        """Takes the next character. Must not be called again after DONE or BAD."""
        if self.expects == "string":
            return self._string(character)
        if self.expects == "scalar":
            if character not in ",]} \t\n\r":
                self._scalar += character
                return Progress.MORE
            if self._scalar not in _WORDS and not _NUMBER.fullmatch(self._scalar):
                return Progress.BAD
            self.expects = "next"
        if character in _SPACE:
            return Progress.MORE
        return self._structure(character)

    def _string(self, character: str) -> Progress:
        if self._escape:
            self._escape += character
            if self._escape[1] != "u":
                good = self._escape[1] in '"\\/bfnrt'
                self._escape = ""
                return Progress.MORE if good else Progress.BAD
            if len(self._escape) > 2 and character not in _HEX:
                return Progress.BAD
            if len(self._escape) == 6:
                self._escape = ""
        elif character == "\\":
            self._escape = character
        elif character == '"':
            self.expects = self._after_string
        elif character < " ":
            return Progress.BAD
        return Progress.MORE

    def _structure(self, character: str) -> Progress:
        expect = self.expects
        if character == '"' and expect in ("key", "key or end", "value", "value or end"):
            self._after_string = "colon" if expect.startswith("key") else "next"
            self.expects = "string"
        elif character == ":" and expect == "colon":
            self.expects = "value"
        elif character == "," and expect == "next":
            self.expects = "key" if self._stack[-1] == "{" else "value"
        elif character == "{" and expect in ("object", "value", "value or end"):
            self._stack.append(character)
            self.expects = "key or end"
        elif character == "[" and expect in ("value", "value or end"):
            self._stack.append(character)
            self.expects = "value or end"
        elif character in "}]" and self._closes(character):
            self._stack.pop()
            self.expects = "next"
            return Progress.MORE if self._stack else Progress.DONE
        elif expect in ("value", "value or end") and character in "-0123456789tfn":
            self._scalar = character
            self.expects = "scalar"
        else:
            return Progress.BAD
        return Progress.MORE

    def _closes(self, character: str) -> bool:
        empty = "key or end" if character == "}" else "value or end"
        opened = "{" if character == "}" else "["
        return self.expects in ("next", empty) and self._stack[-1:] == [opened]
