"""Calls in the text of answers: the same however it is cut, and never less than was said."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.tools.parsers.base import CallArguments, CallForm, CallParser, ContentPiece
from router.tools.parsers.registry import FORMS, call_form, tool_parser_names
from tests.router.tools.calls import NAMES, read, together

HERMES, LLAMA = FORMS["hermes"], FORMS["llama3_json"]
WEATHER = '{"name": "get_weather", "arguments": {"city": "Köln", "days": [1, 2.5e3], "x": "</tool_call>}"}}'
ARGUMENTS = '{"city": "Köln", "days": [1, 2.5e3], "x": "</tool_call>}"}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello", [("content", "hello")]),
        (" 1 <\n", [("content", " 1 <\n")]),
        (f"<tool_call>\n{WEATHER}\n</tool_call>", [("get_weather", ARGUMENTS)]),
        (
            f'Let me.\n\n<tool_call>{WEATHER}</tool_call>\n<tool_call>{{"name":"f"}}</tool_call>\nDone.',
            [("content", "Let me."), ("get_weather", ARGUMENTS), ("f", "{}"), ("content", "Done.")],
        ),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', [("f", "{}")]),
        # The marker says that it is a call: whoever runs it finds out that there is no such function.
        ('<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', [("unknown", "{}")]),
        # A brace or the closing marker forgotten.
        ('<tool_call>{"name": "f", "arguments": {"a": 1}\n</tool_call>', [("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', [("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f", "arguments": {}} x', [("f", "{}"), ("content", "x")]),
        # No call at all.
        ("<tool_call>no</tool_call>", [("content", "<tool_call>no</tool_call>")]),
        ('a <tool_call> {"name": 5}', [("content", 'a <tool_call> {"name": 5}')]),
        (
            '<tool_call>{"name": "f", "arguments": [1]}',
            [("content", '<tool_call>{"name": "f", "arguments": [1]}')],
        ),
        ('<tool_call>{"name": "f", "argum', [("content", '<tool_call>{"name": "f", "argum')]),
        ('<tool_call><tool_call>{"name": "f"}</tool_call>', [("content", "<tool_call>"), ("f", "{}")]),
        # Begun, and then broken or cut off: what the model wrote.
        (
            '<tool_call>{"name": "f", "arguments": {"a": 1,}} </tool_call> x',
            [("f", '{"a": 1,}}'), ("content", "x")],
        ),
        ('<tool_call>{"name": "f", "arguments": {"a": "b', [("f", '{"a": "b')]),
    ],
)  # fmt: skip
def test_hermes(text: str, expected: list[tuple[str, str]]) -> None:
    assert read(HERMES, text) == expected
    assert read(HERMES, text, range(len(text))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello", [("content", "hello")]),
        (" {", [("content", " {")]),
        ('{"name": "f", "parameters": {"a": 1}}', [("f", '{"a": 1}')]),
        (' <|python_tag|>{"name": "f", "parameters": {"a": 1}}', [("f", '{"a": 1}')]),
        ('{"type": "function", "name": "f", "parameters": {}}', [("f", "{}")]),
        (
            '{"name": "f", "parameters": {"a": 1}}; {"name": "get_weather", "parameters": {}}',
            [("f", '{"a": 1}'), ("get_weather", "{}")],
        ),
        ('I look.<|python_tag|>{"name": "f", "parameters": {}}', [("content", "I look."), ("f", "{}")]),
        ('{"name": "f", "parameters": {}} there', [("f", "{}"), ("content", "there")]),
        # JSON that is an answer, not a call.
        ('{"name": "Ada", "parameters": {}}', [("content", '{"name": "Ada", "parameters": {}}')]),
        ('{"name": "f", "age": 3}', [("content", '{"name": "f", "age": 3}')]),
        ('[{"name": "f"}]', [("content", '[{"name": "f"}]')]),
        ("<|python_tag|>print(1)", [("content", "print(1)")]),
        ('{"name": "f", "parameters": {"a": b', [("f", '{"a": b')]),
    ],
)
def test_llama3_json(text: str, expected: list[tuple[str, str]]) -> None:
    assert read(LLAMA, text) == expected
    assert read(LLAMA, text, range(len(text))) == expected


# Pieces of calls, good and bad, in any order: what a confused model could write.
_FRAGMENTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "<tool", "</tool_", "word", "é😀", "null", "-1"),
        *('{"name": "f", ', '"arguments": ', '"parameters": ', '{"a": [1, tru', "e]}", '"x\\u00e9', '\\"'),
        *('"', "\n", " ", ",", ":", "[", "]", "{", "}", ";"),
        *(WEATHER, '{"name": "f", "parameters": {}}', '{"name": "g"}'),
    ]
)
_ANSWERS = st.lists(_FRAGMENTS, max_size=12).map("".join)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(text=_ANSWERS, data=st.data())
def test_pieces_make_no_difference(form: CallForm, text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text))))
    assert read(form, text, cuts) == read(form, text)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(text=_ANSWERS)
def test_what_has_no_marker_and_no_name_stays_as_it_is(form: CallForm, text: str) -> None:
    if form.start in text or '"name"' in text:
        text = text.replace(form.start, "").replace('"name"', '"nome"').replace(form.start, "")
    if form.start not in text:
        assert read(form, text) == ([("content", text)] if text else [])


def test_no_half_marker_is_shown_while_it_may_become_one() -> None:
    parser = CallParser(HERMES, NAMES, single=False)
    assert parser.add("Hi \n<tool_cal") == [ContentPiece("Hi")]
    assert parser.add("m <tool_call") == [ContentPiece(" \n<tool_calm")]
    assert parser.add('>{"name": ') == []
    assert together(parser.finish()) == [("content", ' <tool_call>{"name": ')]


@given(text=_ANSWERS)
def test_nothing_is_lost(text: str) -> None:
    """Of all that is said only white space, markers and the frames of calls are missing."""
    parts = read(HERMES, text)
    rest = text
    for kind, part in parts:
        if kind == "content":
            for word in part.split():
                assert word in rest
                rest = rest.partition(word)[2]
    if all(kind == "content" for kind, _ in parts):
        assert "".join(part for _, part in parts) == text


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(("form", "member"), [(HERMES, "arguments"), (LLAMA, "parameters")])
@given(
    arguments=st.dictionaries(st.text(), _VALUES, max_size=4),
    ascii_only=st.booleans(),
    indent=st.none() | st.just(2),
)
def test_every_call_is_read(
    form: CallForm, member: str, arguments: dict[str, object], ascii_only: bool, indent: int | None
) -> None:
    call = json.dumps({"name": "f", member: arguments}, ensure_ascii=ascii_only, indent=indent)
    [(name, text)] = read(form, f"{form.start}\n{call}\n{form.end}")
    assert name == "f"
    assert json.loads(text) == arguments


def test_arguments_come_as_they_are_written() -> None:
    parser = CallParser(HERMES, NAMES, single=False)
    assert len(parser.add('<tool_call>\n{"name": "f", "arguments": {')) == 2
    assert parser.add('"city": "K') == [CallArguments(0, '"city": "K')]
    assert parser.add('öln"}}') == [CallArguments(0, 'öln"}')]


def test_one_call_is_enough_where_one_was_asked_for() -> None:
    text = '<tool_call>{"name": "f"}</tool_call>'
    parser = CallParser(HERMES, NAMES, single=True)
    parser.add(text)
    assert parser.done
    assert parser.add(text) == parser.finish() == []
    assert read(LLAMA, '{"name": "f"};{"name": "f"}', single=True) == [("f", "{}")]


@pytest.mark.parametrize(
    ("name", "template", "expected"),
    [
        ("auto", None, None),
        ("auto", "{{ messages }}", None),
        ("auto", "... <tool_call> ...", HERMES),
        ("auto", '... "parameters" ... ipython', LLAMA),
        ("auto", "... <|python_tag|> ...", LLAMA),
        ("none", "... <tool_call> ...", None),
        ("llama3_json", "... <tool_call> ...", LLAMA),
        ("hermes", None, HERMES),
    ],
)
def test_the_deployment_or_the_template_says_which(
    name: str, template: str | None, expected: CallForm | None
) -> None:
    assert name in tool_parser_names()
    assert call_form(name, template) == expected
