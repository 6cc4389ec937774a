"""Which schemas are let through, and what the others are told."""

from __future__ import annotations

import jsonschema
import pytest

from router.errors import InvalidRequestError
from router.structured.json_schema import ANNOTATIONS, FORMATS, checked_schema
from router.structured.patterns import pattern_problem


@pytest.mark.parametrize(
    ("schema", "path", "says"),
    [
        ({"uniqueItems": True}, "s.uniqueItems", "not supported"),
        ({"properties": {"a": {"not": {}}}}, "s.properties.a.not", "not supported"),
        ({"items": [{}]}, "s.items", "must be a JSON Schema"),
        ({"anyOf": []}, "s.anyOf", "at least one"),
        ({"anyOf": [{}, {"if": {}}]}, "s.anyOf[1].if", "not supported"),
        ({"prefixItems": [{}, 3]}, "s.prefixItems[1]", "must be a JSON Schema"),
        ({"$defs": {"a/b": {"const": "\ud800"}}}, "s.$defs.a/b.const", "surrogates"),
        ({"properties": {"\x01": {}}}, "s.properties", "control characters"),
        ({"type": "float"}, "s.type", "string, number"),
        ({"type": []}, "s.type", "one or several"),
        ({"required": "a"}, "s.required", "list of strings"),
        ({"minLength": -1}, "s.minLength", "at least 0"),
        ({"maxItems": True}, "s.maxItems", "whole number"),
        ({"minimum": "1"}, "s.minimum", "a number"),
        ({"exclusiveMinimum": True}, "s.exclusiveMinimum", "a number"),
        ({"multipleOf": 0.01}, "s.multipleOf", "whole number"),
        ({"minProperties": 2}, "s.minProperties", "at most one more"),
        ({"pattern": "(?=a)"}, "s.pattern", "'(?' group"),
        ({"patternProperties": {"a\\1": {}}}, "s.patternProperties.a\\1", "not supported"),
        ({"format": "color"}, "s.format", "date-time"),
        ({"$ref": "http://elsewhere/x"}, "s.$ref", "in this schema"),
        ({"$ref": "#/$defs/a"}, "s.$ref", "leads to no schema"),
        ({"properties": {}, "items": {"$ref": "#/properties"}}, "s.items.$ref", "leads to no schema"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}}, "s.$defs.a.$ref", "without end"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "s.$schema", "not supported"),
        ({"properties": {"a": {"$id": "x"}}}, "s.properties.a.$id", "not supported"),
        ({"x-guidance": {"lenient": True}}, "s.x-guidance", "not supported"),
        ({"nullable": True}, "s.nullable", "not supported"),
        ([], "s", "an object or a boolean"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_path(schema: object, path: str, says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        checked_schema(schema, "s")
    assert caught.value.param == path
    assert repr(path) in caught.value.message
    assert says in caught.value.message


def test_depth_is_bounded() -> None:
    schema: dict[str, object] = {}
    for _ in range(100):
        schema = {"items": schema}
    with pytest.raises(InvalidRequestError, match="nested more than"):
        checked_schema(schema, "s")


def test_annotations_are_taken_off_and_names_are_not() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "http://x/y",
        **dict.fromkeys(ANNOTATIONS, "x"),
        "uniqueItems": False,
        "properties": {name: {"title": "x", "type": "integer"} for name in ANNOTATIONS},
        "enum": [{"title": 1}],
    }
    checked = checked_schema(schema, "s").schema
    assert checked == {
        "properties": {name: {"type": "integer"} for name in ANNOTATIONS},
        "enum": [{"title": 1}],
    }


@pytest.mark.parametrize(
    ("alternatives", "proven"),
    [
        ([{"type": "integer"}, {"type": "string"}], True),
        ([{"type": "integer"}, {"type": "number"}], False),
        ([{"type": ["string", "null"]}, {"type": ["object", "null"]}], False),
        ([{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], True),
        ([{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/any"}], False),
        ([{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/maybe"}], False),
    ],
)
def test_alternatives_that_exclude_each_other(alternatives: list[object], proven: bool) -> None:
    def pet(tag: dict[str, object], required: bool = True) -> dict[str, object]:
        found: dict[str, object] = {"type": "object", "properties": {"kind": tag}}
        return {**found, "required": ["kind"]} if required else found

    definitions = {
        "cat": pet({"const": "cat"}),
        "dog": pet({"enum": ["dog", "wolf"]}),
        "any": pet({"enum": ["cat", "fish"]}),
        "maybe": pet({"const": "dog"}, required=False),
    }
    checked = checked_schema({"$defs": definitions, "oneOf": alternatives}, "s").schema
    assert isinstance(checked, dict)
    assert ("anyOf" in checked) is proven
    assert ("oneOf" in checked) is not proven


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": {}},
        {"anyOf": [{"type": "null"}]},
        True,
    ],
)
def test_strict_is_openais(schema: object) -> None:
    assert checked_schema(schema, "s").schema == schema
    with pytest.raises(InvalidRequestError, match="strict mode"):
        checked_schema(schema, "s", strict=True)


def test_strict_schemas_pass() -> None:
    inner = {"type": "object", "properties": {}, "additionalProperties": False}
    schema = {
        "type": "object",
        "properties": {"a": {"anyOf": [inner, {"type": "null"}]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert checked_schema(schema, "s", strict=True).schema == schema


def test_formats_are_those_that_validators_know() -> None:
    known = jsonschema.FormatChecker().checkers
    assert set(FORMATS) - set(known) <= {"date-time", "uri", "hostname", "duration"}


@pytest.mark.parametrize(
    "pattern", ["^a+$", "[^a-c]{2,3}|x", r"\d\w\s\S\.\/\-", "(?:a|b)*?", "[]x]"[1:3], "é", r"[\]a]"]
)
def test_patterns_that_every_dialect_reads_alike(pattern: str) -> None:
    assert pattern_problem(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)", "(?i)a", "(?P<n>a)", r"\1", r"\D", r"\W", r"\bx", r"\p{L}", r"\Z", "a++", "a*+", "a{2}+",
     "[[a]]", "[a&&b]", "[]a]", "[^]a]", "a{,3}", "(", "[a", "\\", "a" * 5000, "(" * 3000],
)  # fmt: skip
def test_other_patterns_are_refused(pattern: str) -> None:
    assert pattern_problem(pattern)
