"""Which tokens are shown with which text, whatever the text hides."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.answer_text import AnswerText, ShownToken, TextRules
from router.generation import ResolvedSampling
from router.text.tokenizer import Tokenizer
from tests.support.scripted_dispatcher import logprobs_at
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE, byte_tokenizer

TOKENIZER = Tokenizer(byte_tokenizer(), VOCAB_SIZE, frozenset({IM_END}), "test")


def run(
    tokens: list[int], sizes: list[int], rules: TextRules, min_tokens: int
) -> tuple[str, list[ShownToken], bool]:
    """The whole text, the tokens shown, and whether a stop string ended it. Checks each piece on its way."""
    answer = AnswerText(TOKENIZER, ResolvedSampling(1.0, 1.0, 0, 0, 0, 1000, min_tokens=min_tokens), rules)
    text, shown, rest = "", list[ShownToken](), tokens
    for size in sizes:
        delta, rest = rest[:size], rest[size:]
        piece = answer.add(delta, [logprobs_at(token, 1) for token in delta])
        text += piece.text
        shown.extend(piece.shown)
        assert all(token.offset < len(text) for token in piece.shown), "shown before its text"
        if piece.stopped:
            return text, shown, True
    piece = answer.finish()
    return text + piece.text, [*shown, *piece.shown], piece.stopped


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([97, 98, 0xC3, 0xA9, 0xF0, 256]), max_size=25),
    st.lists(st.sampled_from(["ab", "aab", "é", "b", "\ufffd"]), max_size=2),
    st.booleans(),
    st.booleans(),
    st.integers(0, 4),
    st.lists(st.integers(1, 7), min_size=25, max_size=25),
    st.booleans(),
)
def test_shown_tokens_are_those_of_the_text(
    tokens: list[int],
    stops: list[str],
    include: bool,
    skip: bool,
    min_tokens: int,
    sizes: list[int],
    ended: bool,
) -> None:
    rules = TextRules(tuple(stops), include_stop=include, skip_special_tokens=skip)
    tokens = [*tokens, IM_END] if ended else tokens
    sizes = [*sizes, 1]
    text, shown, stopped = run(tokens, sizes, rules, min_tokens)
    # However they come, the same are shown.
    assert run(tokens, [1] * len(tokens), rules, min_tokens) == (text, shown, stopped)
    ids = [token.token_id for token in shown]
    assert ids == tokens[: len(ids)]
    assert [token.logprobs for token in shown] == [logprobs_at(token, 1) for token in ids]
    offsets = [token.offset for token in shown]
    assert offsets == sorted(offsets)
    assert all(offset <= len(text) for offset in offsets)
    if not stopped:
        assert ids == tokens
