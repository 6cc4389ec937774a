"""Where the last tokens of a growing text have stood before: an index of its n-grams."""

from __future__ import annotations

from collections.abc import Sequence


class NgramIndex:
    """The latest earlier occurrence of each n-gram, for a range of n.

    A token costs at most one look-up for each n. Most long n-grams of a text occur once; one is indexed only
    when its first n - 1 tokens come for the second time, so memory is about one entry a token.

    Args:
        shortest: least n, at least 1.
        longest: greatest.
    """

    __slots__ = ("_latest", "_longest", "_shortest", "_tokens", "length", "match")

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._tokens: list[int] = []
        # N-gram -> where it ended last; ~end, which is negative, where it came once.
        self._latest: dict[tuple[int, ...], int] = {}
        self.match: int | None = None
        """Where the longest suffix that came before has ended then, latest first; None where none did."""
        self.length = 0
        """Tokens of that suffix."""

    def __len__(self) -> int:
        """Tokens taken in."""
        return len(self._tokens)

    def extend(self, token_ids: Sequence[int]) -> None:
        """The text grows."""
        for token_id in token_ids:
            self._tokens.append(token_id)
            self._take_in(len(self._tokens))

    def continuation(self, count: int) -> tuple[int, ...]:
        """The `count` tokens that followed the match; over again where they run into the text's end."""
        if self.match is None:
            return ()
        period = len(self._tokens) - self.match
        return tuple(self._tokens[self.match + index % period] for index in range(count))

    def _take_in(self, end: int) -> None:
        self.match, self.length = None, 0
        for size in range(self._shortest, min(self._longest, end) + 1):
            gram = tuple(self._tokens[end - size : end])
            before = self._latest.get(gram)
            if before is None:
                self._latest[gram] = ~end
                return
            self._latest[gram] = end
            if before < 0:
                before = ~before
                # From now on it counts what stood before it then.
                if size < min(self._longest, before):
                    self._latest[tuple(self._tokens[before - size - 1 : before])] = ~before
            self.match, self.length = before, size
