"""Grammars over the tiny tokenizer: what may come, where it ends, and that only the tokens count."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import GrammarKind, GrammarSpec
from engine.grammar.base import GrammarError, GrammarMatcher
from engine.grammar.guidance import GuidanceCompiler
from grammars.compiling import MAX_SOURCE_CHARS
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE, write_tokenizer

PADDED_VOCAB = VOCAB_SIZE + 5
SCHEMA = GrammarSpec(
    GrammarKind.JSON_SCHEMA,
    json.dumps(
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
            "required": ["a"],
            "additionalProperties": False,
        }
    ),
)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GuidanceCompiler:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return GuidanceCompiler(folder / "tokenizer.json", PADDED_VOCAB, frozenset({IM_END}))


def regex(source: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.REGEX, source)


def allowed(compiler: GuidanceCompiler, matcher: GrammarMatcher) -> set[int]:
    mask = compiler.allowed([matcher])
    assert mask.shape == (1, PADDED_VOCAB)
    return set(np.flatnonzero(mask[0]).tolist())


def advance(matcher: GrammarMatcher, text: str) -> GrammarMatcher:
    for byte in text.encode():
        matcher.advance(byte)
    return matcher


@pytest.mark.parametrize(
    ("spec", "text", "following"),
    [
        (SCHEMA, "", "{"),
        (SCHEMA, '{"', "a"),
        (SCHEMA, '{"a":1', " \t\r\n0123456789,}"),
        (regex("a[bc]{2}"), "ab", "bc"),
        (GrammarSpec(GrammarKind.LARK, 'start: "yes" | "no"'), "n", "o"),
    ],
)
def test_only_what_matches_may_come(
    compiler: GuidanceCompiler, spec: GrammarSpec, text: str, following: str
) -> None:
    matcher = advance(compiler.compile(spec).start(), text)
    assert allowed(compiler, matcher) == set(following.encode())
    assert not matcher.is_complete


def test_a_complete_answer_can_only_end(compiler: GuidanceCompiler) -> None:
    matcher = advance(compiler.compile(SCHEMA).start(), '{"a":1}')
    assert matcher.is_complete
    assert allowed(compiler, matcher) == {IM_END}
    open_ended = advance(compiler.compile(regex("a+")).start(), "a")
    assert not open_ended.is_complete
    assert allowed(compiler, open_ended) == {ord("a"), IM_END}
    open_ended.advance(IM_END)
    assert open_ended.is_complete
    with pytest.raises(GrammarError):
        open_ended.advance(ord("a"))
    open_ended.rollback(1)
    assert allowed(compiler, open_ended) == {ord("a"), IM_END}


def test_a_token_that_may_not_come_changes_nothing(compiler: GuidanceCompiler) -> None:
    matcher = advance(compiler.compile(regex("abc")).start(), "a")
    for token_id in (ord("c"), IM_END, VOCAB_SIZE - 1):
        with pytest.raises(GrammarError, match=f"token {token_id} cannot follow"):
            matcher.advance(token_id)
    assert allowed(compiler, matcher) == {ord("b")}


def test_a_model_without_eos_completes_too(compiler: GuidanceCompiler, tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    without = GuidanceCompiler(tmp_path / "tokenizer.json", VOCAB_SIZE, frozenset())
    matcher = advance(without.compile(regex("ab?")).start(), "a")
    assert np.flatnonzero(without.allowed([matcher])[0]).tolist() == [ord("b")]
    assert not matcher.is_complete
    matcher.advance(ord("b"))
    assert matcher.is_complete
    assert not without.allowed([matcher]).any()


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), max_size=25),
    spec=st.sampled_from([SCHEMA, regex("(ab|ba)*c{0,3}"), regex("[ab]{4}")]),
)
def test_the_state_is_a_function_of_the_tokens(
    compiler: GuidanceCompiler, steps: list[tuple[bool, int]], spec: GrammarSpec
) -> None:
    """Whatever was tried and taken back in between."""
    matcher = compiler.compile(spec).start()
    tokens: list[int] = []
    for forward, number in steps:
        if forward:
            choices = sorted(allowed(compiler, matcher))
            token_id = choices[number % len(choices)]
            if tokens and tokens[-1] == IM_END:
                continue
            matcher.advance(token_id)
            tokens.append(token_id)
        elif tokens:
            count = 1 + number % len(tokens)
            matcher.rollback(count)
            del tokens[-count:]
        fresh = compiler.compile(spec).start()
        for token_id in tokens:
            fresh.advance(token_id)
        assert matcher.is_complete == fresh.is_complete
        assert allowed(compiler, matcher) == allowed(compiler, fresh)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            GrammarSpec(GrammarKind.JSON_SCHEMA, '{"type": "strin"}'),
            "invalid json_schema: Invalid type: strin",
        ),
        (GrammarSpec(GrammarKind.JSON_SCHEMA, '{"type": '), "invalid json_schema: Expecting value"),
        (GrammarSpec(GrammarKind.JSON_SCHEMA, "[" * 100_000), "invalid json_schema: maximum recursion"),
        (GrammarSpec(GrammarKind.JSON_SCHEMA, '{}, {"x": 1}'), "invalid json_schema: Extra data"),
        (GrammarSpec(GrammarKind.JSON_SCHEMA, "3"), "it must be an object or a boolean"),
        (GrammarSpec(GrammarKind.JSON_SCHEMA, "false"), "Unsatisfiable schema"),
        (GrammarSpec(GrammarKind.JSON_SCHEMA, '{"if": {}}'), "Unimplemented keys"),
        (regex("a(b"), "invalid regex.*unclosed group"),
        (GrammarSpec(GrammarKind.LARK, "start: b"), 'invalid lark.*unknown name: "b"'),
        (regex("a" * (MAX_SOURCE_CHARS + 1)), f"may have {MAX_SOURCE_CHARS}"),
    ],
)
def test_grammars_that_cannot_be_compiled(
    compiler: GuidanceCompiler, spec: GrammarSpec, message: str
) -> None:
    with pytest.raises(GrammarError, match=f"(?s){message}"):
        compiler.compile(spec)


def test_long_chains_of_rules_do_not_end_the_process(compiler: GuidanceCompiler) -> None:
    """They overflow an ordinary stack."""
    count = 10_000
    chain = "\n".join(f"r{n}: r{n + 1}" for n in range(count))
    source = f'start: r0\n{chain}\nr{count}: "b"'[:MAX_SOURCE_CHARS]
    compiler.compile(GrammarSpec(GrammarKind.LARK, source[: source.rindex("\n")] + f'\nr{count}: "b"'))


def test_what_was_compiled_is_kept(compiler: GuidanceCompiler) -> None:
    first = compiler.compile(regex("kept"))
    again = compiler.compile(regex("kept"))
    assert first is again
    for number in range(100):
        compiler.compile(regex(f"other{number}"))
    assert compiler.compile(regex("kept")) is first, "somebody holds it"
    assert len(compiler._recent) == 64


def test_several_threads_at_once(compiler: GuidanceCompiler) -> None:
    masks: list[set[int]] = []

    def work(number: int) -> None:
        matcher = compiler.compile(regex(f"[a-c]{{{1 + number % 3}}}")).start()
        masks.append(allowed(compiler, matcher))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert masks == [set(b"abc")] * 12


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read"):
        GuidanceCompiler(tmp_path / "tokenizer.json", 10, frozenset())
