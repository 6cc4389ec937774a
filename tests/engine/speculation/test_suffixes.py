"""The suffix automaton against counting by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.speculation.suffixes import ROOT, SuffixAutomaton, TextEnd

pieces = st.integers(1, 4).flatmap(
    lambda vocab: st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.integers(0, vocab - 1), min_size=1, max_size=6)), max_size=20
    )
)


def substrings(texts: Sequence[Sequence[int]]) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(text[start:end])
        for text in texts
        for start in range(len(text))
        for end in range(start + 1, len(text) + 1)
    )


@settings(deadline=None)
@given(pieces, st.integers(1, 8), st.lists(st.integers(0, 4), max_size=10))
def test_counts_and_suffixes_are_those_of_the_texts(
    given_pieces: list[tuple[int, list[int]]], depth: int, tail: list[int]
) -> None:
    """Of texts that grow in turns."""
    automaton = SuffixAutomaton(depth)
    texts: list[list[int]] = [[] for _ in range(4)]
    ends = [TextEnd() for _ in range(4)]
    for which, piece in given_pieces:
        texts[which] += piece
        automaton.append(ends[which], piece)
    assert automaton.num_tokens == sum(map(len, texts))
    counted = substrings(texts)
    for substring, count in counted.items():
        state = ROOT
        for token_id in substring:
            state = automaton.followers(state)[token_id]
        if len(substring) <= depth:
            assert automaton.count(state) == count
    for text in (tail, *texts):
        check_suffixes(automaton, counted, depth, text)


def check_suffixes(
    automaton: SuffixAutomaton, counted: Counter[tuple[int, ...]], depth: int, text: list[int]
) -> None:
    found: list[int] = []
    for state, longest, shortest in automaton.suffixes(text):
        assert longest >= shortest
        found += range(longest, shortest - 1, -1)
        suffix = tuple(text[len(text) - longest :])
        after = {token_id: (*suffix, token_id) for token_id in range(5)}
        followers = automaton.followers(state)
        assert set(followers) == {token_id for token_id, longer in after.items() if longer in counted}
        if shortest < depth:
            assert {token_id: automaton.count(to) for token_id, to in followers.items()} == {
                token_id: counted[longer] for token_id, longer in after.items() if longer in counted
            }
    known = [size for size in range(min(len(text), depth), 0, -1) if tuple(text[-size:]) in counted]
    assert found == known
