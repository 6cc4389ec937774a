"""Tokens to reasoning, content and calls: stop strings, ends and counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.answer_reader import AnswerReader, Reading, ReadPiece
from router.answer_text import AnswerText, TextRules
from router.generation import ResolvedSampling
from router.text.tokenizer import Tokenizer
from router.tools.parsers.base import CallArguments
from router.tools.parsers.registry import FORMS
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE, byte_tokenizer

TOKENIZER = Tokenizer(byte_tokenizer(), VOCAB_SIZE, frozenset((IM_END,)), "test")
SAMPLING = ResolvedSampling(temperature=0, top_p=1, top_k=0, seed=0, choice=0, max_tokens=999)
BOTH = Reading(reasoning="may", form=FORMS["hermes"], functions=frozenset("f"))


def read(
    text: str, reading: Reading, *, step: int = 1, stops: tuple[str, ...] = ()
) -> tuple[ReadPiece, AnswerReader]:
    """The whole answer as one piece, and the reader behind it."""
    reader = AnswerReader(AnswerText(TOKENIZER, SAMPLING, TextRules(stops)), reading)
    pieces, tokens = [], text.encode()
    for start in range(0, len(tokens), step):
        pieces.append(reader.add(tuple(tokens[start : start + step])))
        if pieces[-1].stopped:
            break
    else:
        pieces.append(reader.finish())
    joined = ReadPiece(
        "".join(piece.text for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        tuple(call for piece in pieces for call in piece.calls),
        num_tokens=sum(piece.num_tokens for piece in pieces),
        stopped=pieces[-1].stopped,
    )
    return joined, reader


ANSWER = '<think>Hm.</think>\nSo é:\n<tool_call>{"name": "f", "arguments": {"a": "é"}}</tool_call>'


@pytest.mark.parametrize("step", [1, 2, 5, 1000])
def test_all_three_parts(step: int) -> None:
    piece, reader = read(ANSWER, BOTH, step=step)
    assert (piece.text, piece.reasoning) == ("So é:", "Hm.")
    assert "".join(each.text for each in piece.calls if isinstance(each, CallArguments)) == '{"a": "é"}'
    assert piece.num_tokens == reader.num_tokens == len(ANSWER.encode())
    assert reader.reasoning_tokens == len("<think>Hm.</think>")
    assert reader.reason("stop") == "tool_calls"
    assert reader.reason("length") == "length"


@pytest.mark.parametrize(
    ("text", "counted"),
    [("no reasoning", 0), ("<think>never ends", 17), ("<thin", 0), (" <think></think>x", 16)],
)
def test_reasoning_is_counted_in_tokens(text: str, counted: int) -> None:
    assert read(text, Reading("may"))[1].reasoning_tokens == counted
    assert read(text, Reading("may", shows_reasoning=False))[0].reasoning == ""


@pytest.mark.parametrize(
    ("text", "stop", "content", "reasoning"),
    [
        # What splitter and parser held back is shown when a stop string ends the answer.
        ("So: <tool STOP more", "STOP", "So: <tool ", ""),
        ("So: \n STOP", "STOP", "So: \n ", ""),
        ("<think>Hm </thi STOP", "STOP", "", "Hm </thi"),
        ("<think>Hm</think> \n STOP", "STOP", "", "Hm"),
        ("<thiSTOP", "STOP", "<thi", ""),
    ],
)
def test_a_stop_string_loses_nothing(text: str, stop: str, content: str, reasoning: str) -> None:
    piece, reader = read(text, BOTH, stops=(stop,))
    assert piece.stopped
    assert (piece.text, piece.reasoning) == (content, reasoning)
    assert reader.reason("stop") == "stop"


def test_the_first_call_stops_the_answer_where_one_is_wanted() -> None:
    single = Reading(form=FORMS["hermes"], functions=frozenset("f"), single=True)
    piece, reader = read(ANSWER.partition("\n")[2] + "<tool_call>", single)
    assert piece.stopped
    assert reader.num_tokens == len(ANSWER.partition("\n")[2].encode())


_TEXTS = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {', "}", "é ", "<"]
    ),
    max_size=8,
).map("".join)


@given(text=_TEXTS, step=st.integers(1, 40), reasoning=st.sampled_from(["no", "may", "open"]))
def test_how_tokens_come_makes_no_difference(text: str, step: int, reasoning: str) -> None:
    reading = Reading(reasoning, form=FORMS["hermes"], functions=frozenset("f"))
    one, first = read(text, reading)
    other, second = read(text, reading, step=step)
    assert (one.text, one.reasoning) == (other.text, other.reasoning)
    assert [type(call) for call in one.calls if not isinstance(call, CallArguments)] == [
        type(call) for call in other.calls if not isinstance(call, CallArguments)
    ]
    assert first.reasoning_tokens == second.reasoning_tokens
