"""Counts of the substrings of growing texts: a suffix automaton over several texts, with occurrences.

Blumer et al., 1985, "The smallest automaton recognizing the subwords of a text", built online, in constant
time a token on average. A state stands for the substrings that end at the same places. Occurrences are
counted of substrings of up to a given length, which bounds what a token costs in a text that repeats
itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

ROOT = 0


class TextEnd:
    """Where a text of an automaton ends: belongs to it alone."""

    __slots__ = ("last", "length", "recent")

    def __init__(self) -> None:
        # State of the whole text, and of its last `length` tokens.
        self.last = ROOT
        self.recent = ROOT
        self.length = 0


class SuffixAutomaton:
    """All substrings of some texts, each of which may go on growing.

    Args:
        depth: longest substrings whose occurrences are counted.

    Attributes:
        num_tokens: of all texts. There are at most twice as many states.
    """

    __slots__ = ("_count", "_depth", "_followers", "_length", "_link", "num_tokens")

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._followers: list[dict[int, int]] = [{}]
        # State of the longest substring that is a suffix of the state's and ends elsewhere too.
        self._link = array("l", [-1])
        # Of the state's longest substring.
        self._length = array("l", [0])
        self._count = array("l", [0])
        self.num_tokens = 0

    def append(self, end: TextEnd, token_ids: Sequence[int]) -> None:
        """A text grows; a new one where `end` is new."""
        for token_id in token_ids:
            end.last = self._grow(end.last, token_id)
            # States may have been divided since `recent` was found.
            state = self._followers[self._holding(end.recent, end.length)][token_id]
            end.length = min(end.length + 1, self._depth)
            end.recent = state = self._holding(state, end.length)
            while state != ROOT:
                self._count[state] += 1
                state = self._link[state]
        self.num_tokens += len(token_ids)

    def suffixes(self, token_ids: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """The suffixes of a text that came before, longest first.

        Args:
            token_ids: the text's last tokens, as many as count.

        Yields:
            State, length of its longest substring that is such a suffix, and of its shortest. What may follow
            is the same for all of them.
        """
        state, length = ROOT, 0
        for token_id in token_ids[-self._depth :]:
            while token_id not in self._followers[state] and state != ROOT:
                state = self._link[state]
                length = self._length[state]
            if token_id in self._followers[state]:
                state = self._followers[state][token_id]
                length += 1
        while state != ROOT:
            parent = self._link[state]
            yield state, length, self._length[parent] + 1
            state, length = parent, self._length[parent]

    def followers(self, state: int) -> Mapping[int, int]:
        """Token -> state of the state's substrings with that token behind them."""
        return self._followers[state]

    def count(self, state: int) -> int:
        """Occurrences of a state's substrings; where the shortest of them is longer than `depth`, 0."""
        return self._count[state]

    def _holding(self, state: int, length: int) -> int:
        """The state of a substring's suffix of `length` tokens."""
        while length <= self._length[self._link[state]] and state != ROOT:
            state = self._link[state]
        return state

    def _grow(self, last: int, token_id: int) -> int:
        """State of a whole text with a token more."""
        followers, link, length = self._followers, self._link, self._length
        known = followers[last].get(token_id)
        if known is not None:
            return known if length[known] == length[last] + 1 else self._divide(last, token_id, known)
        new = self._add(length[last] + 1, {}, 0)
        state = last
        while state != -1 and token_id not in followers[state]:
            followers[state][token_id] = new
            state = link[state]
        if state == -1:
            link[new] = ROOT
        else:
            known = followers[state][token_id]
            is_whole = length[known] == length[state] + 1
            link[new] = known if is_whole else self._divide(state, token_id, known)
        return new

    def _divide(self, state: int, token_id: int, known: int) -> int:
        """Parts what follows `state` from the longer substrings of `known`: they will end elsewhere too."""
        part = self._add(self._length[state] + 1, dict(self._followers[known]), self._count[known])
        self._link[part] = self._link[known]
        self._link[known] = part
        while state != -1 and self._followers[state].get(token_id) == known:
            self._followers[state][token_id] = part
            state = self._link[state]
        return part

    def _add(self, length: int, followers: dict[int, int], count: int) -> int:
        self._followers.append(followers)
        self._link.append(ROOT)
        self._length.append(length)
        self._count.append(count)
        return len(self._followers) - 1
