"""Every complete answer under a grammar is what was asked for, whatever the model would have said."""

from __future__ import annotations

import json
import random
import re

import jsonschema
import pytest

from router.structured.asked import AskedAnswer
from router.structured.wanted import Reasoning
from tests.router.structured.support import answer, schema, spec_of
from tests.support.grammar_walks import accepts, walk

WALKS = 25
NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["next"],
}


def _tagged(tag: str) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {"kind": {"const": tag}, "more": {"$ref": "#/$defs/any"}},
        "required": ["kind"],
        "additionalProperties": False,
    }


# One for each keyword that is let through, and for the ways in which they meet.
SCHEMAS: dict[str, object] = {
    "true": True,
    "object": {"type": "object"},
    "types": {"type": ["string", "null"], "maxLength": 1},
    "properties": {
        "title": "Reading",
        "type": "object",
        "properties": {"title": {"type": "integer", "default": 3}, "b": {"type": "string"}},
        "required": ["b"],
    },
    "closed": {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False},
    "required elsewhere": {"type": "object", "required": ["z"], "additionalProperties": {"type": "integer"}},
    "map": {
        "type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1, "maxProperties": 2,
    },
    "one more": {
        "type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "minProperties": 2,
    },
    "patterns of names": {
        "type": "object",
        "patternProperties": {"a": {"type": "integer"}},
        "additionalProperties": {"type": "null"},
    },
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
    "tuple": {"type": "array", "prefixItems": [{"type": "null"}, {"type": "integer"}], "items": False},
    "open tuple": {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "integer"}},
    "length": {"type": "string", "minLength": 2, "maxLength": 3},
    "pattern": {"type": "string", "pattern": "^[a-c]+\\d{2}(?:x|y/)$"},
    "pattern inside": {"type": "string", "pattern": "\\w\\.\\s", "maxLength": 12},
    "number": {"type": "number", "minimum": 0.1, "exclusiveMaximum": 3},
    "integer": {"type": "integer", "exclusiveMinimum": -3.5, "maximum": 100},
    "multiple": {"type": "integer", "multipleOf": 7},
    "enum": {"enum": [1, "a", None, {"b": [1, 2]}, 1.5, 'é"\\\n/']},
    "const": {"const": {"a": 1, "b": "x"}},
    "any of": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
    "one of by type": {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
    "one of by tag": {
        "$defs": {"one": _tagged("one"), "two": _tagged("two"), "any": {
            "oneOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}],
            "discriminator": {"propertyName": "kind"},
        }},
        "$ref": "#/$defs/any",
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 8}, "b": {"type": "null"}}, "required": ["b"]},
        ],
    },
    "recursive": {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    "reference by place": {
        "type": "object",
        "properties": {"a b": {"type": "null"}, "c": {"$ref": "#/properties/a%20b"}},
        "required": ["c"],
    },
    "draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"n": {"type": "integer"}},
        "type": "array", "items": {"$ref": "#/definitions/n"}, "minItems": 1,
    },
    **{
        name: {"type": "string", "format": name}
        for name in ("date", "date-time", "ipv4", "ipv6", "uuid", "email")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
async def test_json_answers_validate(name: str) -> None:
    asked = SCHEMAS[name]
    spec = await spec_of(answer(schema(asked)))
    validator = jsonschema.validators.validator_for(asked, jsonschema.Draft202012Validator)(
        asked, format_checker=jsonschema.FormatChecker()
    )
    rng = random.Random(name)
    complete = [text for _ in range(WALKS) if (text := walk(spec, rng)) is not None]
    assert len(complete) > WALKS // 3
    for text in complete:
        validator.validate(json.loads(text))


async def test_a_name_has_one_spelling() -> None:
    """Else a second member of the same name would escape the first one's schema."""
    asked = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "additionalProperties": {"type": "string"},
    }
    spec = await spec_of(answer(schema(asked)))
    assert accepts(spec, '{"a": 1, "b": "x"}')
    assert not accepts(spec, '{"a": 1, "\\u0061": "x"}')
    assert not accepts(spec, '{"a": 1, "a": "x"}')


async def test_white_space_is_bounded() -> None:
    spec = await spec_of(answer(AskedAnswer("json_object", "", "response_format")))
    assert accepts(spec, "{\n" + " " * 63 + '"a": [1,\n\t2]\n}')
    assert not accepts(spec, "{" + " " * 65 + "}")
    assert not accepts(spec, "[]")
    assert not accepts(spec, " {}")


@pytest.mark.parametrize("reasoning", ["no", "may", "open"])
@pytest.mark.parametrize(
    ("asked", "matches"),
    [
        (AskedAnswer("regex", r"^a/[0-9]{2}(?i:x|y)$", "p"), r"a/[0-9]{2}[xyXY]"),
        (AskedAnswer("choice", json.dumps(['yes "no"', "é😀\n", "y", "/\\"]), "p"), 'yes "no"|é😀\n|y|/\\\\'),
        (AskedAnswer("grammar", 'start: NUM ("+" start)?\nNUM: /[0-9]/ // the start\n', "p"), r"\d(\+\d)*"),
        (AskedAnswer("grammar", 'root ::= "a" [0-9]+ other?\nother ::= "start"\n', "p"), r"a\d+(start)?"),
    ],
    ids=["regex", "choice", "lark", "gbnf"],
)
async def test_other_answers_match(asked: AskedAnswer, matches: str, reasoning: Reasoning) -> None:
    spec = await spec_of(answer(asked, reasoning))
    rng = random.Random(reasoning)
    prefix = {"no": "", "may": "<think>\nwell</think>", "open": "well</think>"}[reasoning]
    complete = [text for _ in range(40) if (text := walk(spec, rng, prefix=prefix)) is not None]
    assert complete
    for text in complete:
        assert re.fullmatch(matches, text.removeprefix(prefix)), text


@pytest.mark.parametrize(
    ("reasoning", "good", "bad"),
    [
        ("no", ['{"a": 1}'], ["<think>x</think>{}", " {}"]),
        ("may", ["{}", "<think>\nx < y\n</think>\n\n{}", "\n<think></think>{}"], ["x</think>{}", "x{}"]),
        ("open", ["x\n</think>\n{}", "</think>{}"], ["{}", "a</think>b</think>{}"]),
    ],
)
async def test_reasoning_is_free_and_the_answer_is_not(
    reasoning: Reasoning, good: list[str], bad: list[str]
) -> None:
    spec = await spec_of(answer(schema({"type": "object"}), reasoning))
    assert [text for text in good if not accepts(spec, text)] == []
    assert [text for text in bad if accepts(spec, text)] == []
