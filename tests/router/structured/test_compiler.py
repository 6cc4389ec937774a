"""Grammars are compiled once, beside the event loop, and none of them harms the process."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from pathlib import Path

import jsonschema
import pytest

from grammars.compiling import MAX_SOURCE_CHARS
from router.errors import InvalidRequestError
from router.generation import GrammarSpec
from router.model_reading import AskedOfAnswers, ModelReading
from router.structured.asked import AskedAnswer
from router.structured.compiler import GrammarCompiler
from router.structured.wanted import Draft, Wanted, draft
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer
from router.tools.asked import ToolFields
from router.tools.parsers.registry import FORMS
from tests.router.structured.support import answer, calls, compiler, schema, spec_of
from tests.router.templates import HERMES
from tests.router.tools.calls import read
from tests.support.grammar_walks import accepts, walk
from tests.support.tiny_tokenizer import text_folder


def _lark(source: str) -> Wanted:
    return answer(AskedAnswer("grammar", source, "grammar"))


async def test_each_grammar_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drafted: list[Wanted] = []
    threads: set[int] = set()

    def counted(wanted: Wanted) -> Draft:
        drafted.append(wanted)
        threads.add(threading.get_ident())
        return draft(wanted)

    monkeypatch.setattr("router.structured.compiler.draft", counted)
    outcomes: list[str] = []
    grammars = compiler(lambda outcome, seconds: outcomes.append(outcome) if seconds >= 0 else None)
    good, bad = answer(schema({"type": "object"})), answer(schema({"not": {}}))
    specs = await asyncio.gather(*(grammars.resolve(good) for _ in range(8)))
    assert len({id(spec) for spec in specs}) == 1
    for _ in range(3):
        with pytest.raises(InvalidRequestError, match="not supported"):
            await grammars.resolve(bad)
    await grammars.resolve(good)
    assert drafted == [good, bad]
    assert threading.get_ident() not in threads
    assert outcomes == ["compiled"] * 8 + ["refused"] * 3 + ["cached"]


async def test_what_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = compiler()
    monkeypatch.setattr(grammars, "_compile", lambda wanted: pytest.fail("compiled"))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"title": "a" * MAX_SOURCE_CHARS}}}
    fields = ToolFields.model_validate({"tools": [tool], "tool_choice": "required"})
    for wanted in (_lark("a" * (MAX_SOURCE_CHARS + 1)), calls(FORMS["hermes"], fields)):
        with pytest.raises(InvalidRequestError, match="are allowed"):
            await grammars.resolve(wanted)


async def test_descriptions_of_tools_change_no_grammar(tmp_path: Path) -> None:
    outcomes: list[str] = []
    folder = text_folder(tmp_path)
    reading = ModelReading(
        Tokenizer.load(folder),
        ChatTemplate(HERMES, {}, "test"),
        observe=lambda outcome, seconds: outcomes.append(outcome),
    )
    await reading.warm()
    for text in ("one", "two"):
        tool = {"type": "function", "function": {"name": "f", "description": text}}
        fields = ToolFields.model_validate({"tools": [tool], "tool_choice": "required"})
        await reading.of(AskedOfAnswers(calls=fields.asked_calls(), chat=True), (1,))
    assert outcomes == ["compiled", "cached"]


@pytest.mark.parametrize("keyword", ["const", "enum"])
@pytest.mark.parametrize("depth", [65, 400, 900])
async def test_constants_are_of_bounded_depth(keyword: str, depth: int) -> None:
    text = f'{{"{keyword}": [{"[" * depth}{"]" * depth}]}}'
    with pytest.raises(InvalidRequestError, match="nested more than 64 deep") as caught:
        await compiler().resolve(answer(AskedAnswer("json_schema", text, "schema")))
    assert caught.value.param == f"schema.{keyword}"


async def test_nothing_wanted_needs_no_grammar() -> None:
    fields = ToolFields.model_validate({"tools": [{"type": "function", "function": {"name": "f"}}]})
    assert await compiler().resolve(Wanted(None, None, None, "may")) is None
    assert await compiler().resolve(calls(FORMS["hermes"], fields)) is None


@pytest.mark.parametrize(
    "source",
    [
        # The library recurses along a chain of rules: with an ordinary stack the process would end here.
        "start: a0\n" + "".join(f'a{i}: a{i + 1} "x"\n' for i in range(7000)) + 'a7000: "y"\n',
        "start: " + "(" * 40_000 + '"a"' + ")" * 40_000,
        "start: /" + "(a" * 20_000 + ")" * 20_000 + "/",
        "start: start",
        "start: %json " + '{"items":' * 9000 + "{}" + "}" * 9000,
        "start: (a* b*)* c\n" * 3000,
        "\x00\ud800",
        "root ::= " + "(" * 5000,
    ],
    ids=["chain", "brackets", "regex", "loop", "json", "twice", "bytes", "gbnf"],
)
async def test_hostile_grammars_are_answered(source: str) -> None:
    assert len(source) <= MAX_SOURCE_CHARS
    [found] = await asyncio.gather(compiler().resolve(_lark(source)), return_exceptions=True)
    if isinstance(found, InvalidRequestError):
        assert found.param == "grammar"
        assert len(found.message) < 1000
    else:
        assert isinstance(found, GrammarSpec)


@pytest.mark.parametrize("kind", ["json_schema", "grammar", "regex"])
async def test_sizes_are_bounded(kind: str) -> None:
    asked = AskedAnswer(kind, '"' + "a" * MAX_SOURCE_CHARS + '"', "p")
    with pytest.raises(InvalidRequestError, match=r"allowed|longer") as caught:
        await compiler().resolve(answer(asked))
    assert caught.value.param == "p"


async def test_what_no_answer_can_match_is_refused() -> None:
    for asked in (
        schema(False),
        schema({"type": "object", "required": ["a"], "additionalProperties": False}),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            await compiler().resolve(answer(asked))
        assert caught.value.param == "schema"


async def test_a_model_without_eos_has_grammars_too() -> None:
    from tests.support.tiny_tokenizer import VOCAB_SIZE, byte_tokenizer

    grammars = GrammarCompiler(
        byte_tokenizer().to_str, VOCAB_SIZE, frozenset(), lambda outcome, seconds: None
    )
    assert await grammars.resolve(answer(AskedAnswer("regex", "a", "p"))) == GrammarSpec("regex", "a")


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 3}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS = {
    "f": PARAMETERS,
    "get_weather": {"type": "object", "properties": {"exact": {"type": "boolean"}}, "required": ["exact"]},
}


def _fields(strict: bool = False, **more: object) -> ToolFields:
    functions = [
        {"name": name, "parameters": parameters, "strict": strict and name == "f"}
        for name, parameters in FUNCTIONS.items()
    ]
    if strict:
        functions[0]["parameters"] = {**PARAMETERS, "required": ["city", "days"]}
    return ToolFields.model_validate(
        {"tools": [{"type": "function", "function": function} for function in functions], **more}
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reasoning", ["no", "may", "open"])
async def test_required_calls_are_valid_whatever_the_model_says(form: str, reasoning: str) -> None:
    spec = await spec_of(calls(FORMS[form], _fields(tool_choice="required"), reasoning))
    prefix = {"no": "", "may": "<think>f <tool_call></think>\n", "open": "f</think>"}[reasoning]
    rng = random.Random(form + reasoning)
    complete = [text for _ in range(25) if (text := walk(spec, rng, 600, prefix=prefix)) is not None]
    assert len(complete) > 5
    for text in complete:
        found = read(FORMS[form], text.removeprefix(prefix).lstrip())
        assert found
        for name, arguments in found:
            jsonschema.validate(json.loads(arguments), FUNCTIONS[name])


@pytest.mark.parametrize("form", FORMS)
async def test_the_named_function_is_called_once(form: str) -> None:
    choice = {"type": "function", "function": {"name": "f"}}
    spec = await spec_of(calls(FORMS[form], _fields(tool_choice=choice)))
    rng = random.Random(form)
    complete = [text for _ in range(10) if (text := walk(spec, rng)) is not None]
    assert complete
    for text in complete:
        [(name, arguments)] = read(FORMS[form], text)
        assert name == "f"
        jsonschema.validate(json.loads(arguments), PARAMETERS)


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (
            "hermes",
            [
                "Just text.",
                "",
                'So:\n<tool_call>\n{"name": "f", "arguments": {"city": "a", "days": 2}}\n</tool_call> !',
                '<tool_call>\n{"name": "get_weather", "arguments": {"any": ["thing"]}}\n</tool_call>',
            ],
            [
                '<tool_call>\n{"name": "f", "arguments": {"city": "a"}}\n</tool_call>',
                '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
                "A <tool_call> is",
            ],
        ),
        (
            "llama3_json",
            ["Just text.", "", '{"name": "f", "parameters": {"city": "a", "days": 2}}', "I say {}"],
            ['{"name": "f", "parameters": {"city": "a"}}', "{}", ' \n{"a": 1}'],
        ),
    ],
)
async def test_strict_functions_hold_also_where_the_model_is_free(
    form: str, good: list[str], bad: list[str]
) -> None:
    spec = await spec_of(calls(FORMS[form], _fields(strict=True)))
    assert [text for text in good if not accepts(spec, text)] == []
    assert [text for text in bad if accepts(spec, text)] == []


async def test_reasoning_may_speak_of_calls() -> None:
    spec = await spec_of(calls(FORMS["hermes"], _fields(strict=True), "may"))
    call = '<tool_call>\n{"name": "f", "arguments": {"city": "a", "days": 2}}\n</tool_call>'
    assert accepts(spec, f"<think>A <tool_call>?</think>\n{call}")
    assert accepts(spec, "<think>A <tool_call>?</think>\nNo.")
    assert not accepts(spec, "<think>A</think>\n<tool_call>\n{}")


@pytest.mark.parametrize("form", FORMS)
async def test_an_answer_in_json_or_a_call(form: str) -> None:
    asked = schema({"type": "object", "properties": {"name": {"const": "Ada"}}, "required": ["name"]})
    spec = await spec_of(calls(FORMS[form], _fields(), asked=asked))
    key = FORMS[form].arguments
    call = FORMS[form].start if not FORMS[form].bare else ""
    lead = FORMS[form].lead
    call += f'{lead}{{"name": "get_weather", "{key}": {{"a": 1}}}}{lead}{FORMS[form].end}'
    assert accepts(spec, '{"name": "Ada"}')
    assert accepts(spec, call)
    assert not accepts(spec, '{"name": "Bob"}')
    assert not accepts(spec, "text")


async def test_markers_that_are_special_tokens() -> None:
    fields = _fields(tool_choice="required")
    special = frozenset(("<think>", "</think>", "<tool_call>", "</tool_call>"))
    for reasoning in ("may", "open"):
        wanted = Wanted(None, fields.asked_calls(), FORMS["hermes"], reasoning, special)
        lark = draft(wanted).spec.source
        assert "kv_thoughts </think>" in lark
        assert "<tool_call> kv_call </tool_call>" in lark
        assert '"<tool_call>"' not in lark
    free = Wanted(None, _fields(strict=True).asked_calls(), FORMS["hermes"], "no", special)
    assert "kv_before: kv_rest <tool_call>" in draft(free).spec.source
