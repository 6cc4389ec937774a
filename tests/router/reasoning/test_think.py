"""The split into reasoning and content."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.reasoning.registry import reads_reasoning, reasoning_parser_names
from router.reasoning.think import ThinkSplitter, prompt_opens


def split(
    text: str, cuts: Iterable[int] = (), *, opened: bool = False, keep_space: bool = False
) -> tuple[str, str]:
    splitter = ThinkSplitter(opened=opened, keep_space=keep_space)
    parts, start = [], 0
    for end in [*sorted(cuts), len(text)]:
        parts.append(splitter.add(text[start:end]))
        start = end
    parts.append(splitter.finish())
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", "")),
        ("hello", ("", "hello")),
        ("  hello \n", ("", "  hello \n")),
        ("<think>\nHm.\n</think>\n\nYes.", ("Hm.", "Yes.")),
        (" <think>Hm.</think>Yes. </think>", ("Hm.", "Yes. </think>")),
        ("<think></think>Yes.", ("", "Yes.")),
        ("<think>\n \n</think>\n", ("", "")),
        ("<think>Hm <think> a < b </thin </think>x", ("Hm <think> a < b </thin", "x")),
        ("<think>cut of", ("cut of", "")),
        ("<think>cut of </thi", ("cut of </thi", "")),
        ("<thin", ("", "<thin")),
        ("I <think> so</think>", ("", "I <think> so</think>")),
    ],
)
def test_answers(text: str, expected: tuple[str, str]) -> None:
    assert split(text) == expected
    assert split(text, range(len(text))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hm.\n</think>\nYes.", ("Hm.", "Yes.")),
        ("</think>Yes.", ("", "Yes.")),
        # Some models repeat what the prompt has already.
        ("<think>\nHm.</think>Yes.", ("Hm.", "Yes.")),
        ("never ends ", ("never ends", "")),
        ("<th", ("<th", "")),
    ],
)
def test_answers_to_a_prompt_that_began_the_reasoning(text: str, expected: tuple[str, str]) -> None:
    assert split(text, opened=True) == expected
    assert split(text, range(len(text)), opened=True) == expected


def test_space_that_belongs_to_the_content_stays() -> None:
    assert split("<think>a </think> b", keep_space=True) == ("a", " b")


_TEXTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "</thi", "nk>", " ", "\n", "a", "é😀", "<thinking>"]),
    max_size=10,
).map("".join)


@given(text=_TEXTS, opened=st.booleans(), keep_space=st.booleans(), data=st.data())
def test_pieces_make_no_difference(text: str, opened: bool, keep_space: bool, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text))))
    whole = split(text, opened=opened, keep_space=keep_space)
    assert split(text, cuts, opened=opened, keep_space=keep_space) == whole


@given(text=_TEXTS, opened=st.booleans())
def test_only_one_pair_of_markers_and_space_is_missing(text: str, opened: bool) -> None:
    rest = text.lstrip()
    if rest.startswith("<think>"):
        rest = rest.removeprefix("<think>")
        opened = True
    if opened:
        rest = rest.replace("</think>", "", 1)
    assert "".join("".join(split(text, opened=opened)).split()) == "".join(rest.split())


@pytest.mark.parametrize(
    ("name", "template", "expected"),
    [
        ("auto", None, False),
        ("auto", "{{ x }}", False),
        ("auto", "... </think> ...", True),
        ("none", "... </think> ...", False),
        ("think", None, True),
    ],
)
def test_the_deployment_or_the_template_says_so(name: str, template: str | None, expected: bool) -> None:
    assert name in reasoning_parser_names()
    assert reads_reasoning(name, template) is expected


def test_prompts_that_begin_the_reasoning() -> None:
    assert prompt_opens("<|assistant|><think>\n")
    assert not prompt_opens("<think>\n\n</think>\n\n")
    assert not prompt_opens("what does <think> mean?<|assistant|>")
