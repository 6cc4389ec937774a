from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.text.stop_strings import StopStrings

# Two letters, so that patterns overlap themselves and each other.
letters = st.text(alphabet="ab", max_size=40)
patterns = st.lists(st.text(alphabet="ab", min_size=1, max_size=6), max_size=4)


def naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """Tries every end from the left, and at each end the longest stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(letters, patterns, st.lists(st.integers(1, 5)))
def test_equals_the_naive_method_however_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    watch = StopStrings(stops)
    shown, stopped, rest = "", False, text
    while rest and not stopped:
        size = cuts.pop() if cuts else 1
        piece, rest = rest[:size], rest[size:]
        check = watch.add(piece)
        shown, stopped = shown + check.text, check.stopped
        # Whatever may follow, nothing shown may have to be taken back.
        assert naive(text, stops)[0].startswith(shown)
    if not stopped:
        shown += watch.finish()
    assert (shown, stopped) == naive(text, stops)


@given(letters, patterns)
def test_holds_back_no_more_than_needed(text: str, stops: list[str]) -> None:
    watch = StopStrings(stops)
    shown = ""
    for position, character in enumerate(text, start=1):
        check = watch.add(character)
        if check.stopped:
            return
        shown += check.text
        seen = text[:position]
        starts = [stop[:size] for stop in stops for size in range(len(stop)) if seen.endswith(stop[:size])]
        assert len(seen) - len(shown) == max(map(len, starts), default=0)


def test_across_pieces() -> None:
    watch = StopStrings(["</end>"])
    assert [watch.add(piece).text for piece in ("one<", "/e", "n")] == ["one", "", ""]
    assert watch.add("x").text == "</enx"
    assert watch.add("two</end> three").text == "two"


def test_text_in_wait_comes_out_at_the_end() -> None:
    watch = StopStrings(["###"])
    assert watch.add("a##").text == "a"
    assert watch.finish() == "##"
    assert watch.finish() == ""


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


@given(letters, patterns.filter(bool), st.integers(1, 5))
def test_what_was_met_can_be_shown(text: str, stops: list[str], size: int) -> None:
    hidden, shown = StopStrings(stops), StopStrings(stops, include=True)
    both = ["", ""]
    for begin in range(0, len(text), size):
        checks = [watch.add(text[begin : begin + size]) for watch in (hidden, shown)]
        both = [so_far + check.text for so_far, check in zip(both, checks, strict=True)]
        assert checks[0].stopped == checks[1].stopped
        if checks[0].stopped:
            ending = [stop for stop in stops if both[1].endswith(stop)]
            assert both[1] == both[0] + max(ending, key=len)
            return
    assert both[0] + hidden.finish() == both[1] + shown.finish() == text
