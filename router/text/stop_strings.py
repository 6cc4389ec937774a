"""Ends an answer at the first stop string, without ever showing the beginning of one.

Each stop string is matched character by character with the failure function of Knuth, Morris and Pratt,
"Fast Pattern Matching in Strings" (1977): constant amortised time for each character and stop string,
however the text is cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopCheck:
    """Text that is safe to show now, and whether a stop string was met (nothing follows then)."""

    text: str
    stopped: bool


class _Matcher:
    """Follows one pattern through a text. `matched` characters of it end the text seen so far."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.matched = 0
        self._failure = [0] * len(pattern)
        length = 0
        for position in range(1, len(pattern)):
            while length and pattern[position] != pattern[length]:
                length = self._failure[length - 1]
            length += pattern[position] == pattern[length]
            self._failure[position] = length

    def advance(self, character: str) -> bool:
        """Takes one character; True where the whole pattern ends here. Not to be called after that."""
        while self.matched and character != self.pattern[self.matched]:
            self.matched = self._failure[self.matched - 1]
        self.matched += character == self.pattern[self.matched]
        return self.matched == len(self.pattern)


class StopStrings:
    """Watches one answer's text for stop strings.

    The match that ends first wins; of those that end at the same character the longest. So the answer does
    not depend on how tokens cut the text.

    Args:
        stops: non-empty strings; none for no watching.
        include: the stop string that was met is shown too.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        if "" in stops:
            raise ValueError("a stop string must not be empty")
        self._include = include
        self._matchers = [_Matcher(stop) for stop in stops]
        self._held = ""

    def add(self, text: str) -> StopCheck:
        """Takes the next piece. Must not be called again once stopped."""
        if not self._matchers:
            return StopCheck(text, stopped=False)
        pending = self._held + text
        for position, character in enumerate(text, start=len(self._held)):
            ended = [matcher for matcher in self._matchers if matcher.advance(character)]
            if ended:
                longest = max(len(matcher.pattern) for matcher in ended)
                hidden = 0 if self._include else longest
                return StopCheck(pending[: position + 1 - hidden], stopped=True)
        safe = len(pending) - max(matcher.matched for matcher in self._matchers)
        self._held = pending[safe:]
        return StopCheck(pending[:safe], stopped=False)

    def finish(self) -> str:
        """What was held back, once the answer has ended for another reason."""
        held, self._held = self._held, ""
        return held
