"""The index of n-grams against a search of the whole text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.ngrams import NgramIndex

texts = st.integers(1, 4).flatmap(lambda vocab: st.lists(st.integers(0, vocab - 1), max_size=60))


def searched(text: Sequence[int], shortest: int, longest: int) -> int | None:
    """End of the latest earlier occurrence of the longest suffix."""
    for size in range(min(longest, len(text)), shortest - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[len(text) - size :]:
                return end
    return None


@given(texts, st.integers(1, 4), st.integers(0, 4), st.integers(1, 7))
def test_matches_are_those_of_a_search(text: list[int], shortest: int, more: int, step: int) -> None:
    """Whatever pieces the text comes in."""
    index = NgramIndex(shortest, shortest + more)
    for start in range(0, len(text), step):
        index.extend(text[start : start + step])
        so_far = text[: start + step]
        assert len(index) == len(so_far)
        match = searched(so_far, shortest, shortest + more)
        assert index.match == match
        if match is None:
            assert index.continuation(5) == ()
        else:
            going_on = list(so_far)
            for offset in range(5):
                going_on.append(going_on[match + offset])
            assert index.continuation(5) == tuple(going_on[len(so_far) :])


@pytest.mark.parametrize(
    ("text", "continuation"),
    [
        ("abcdXabc", "dXab"),
        ("abcdXabcYab", "cYab"),
        ("abcYabcdXabc", "dXab"),
        ("ababab", "abab"),
        ("aaaa", "aaaa"),
        ("abcdef", ""),
    ],
)
def test_the_longest_match_counts_then_the_latest(text: str, continuation: str) -> None:
    index = NgramIndex(2, 4)
    index.extend(list(text.encode()))
    assert bytes(index.continuation(4)).decode() == continuation
