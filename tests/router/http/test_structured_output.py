"""Structured output as the `openai` package sees it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pydantic
import pytest

from tests.router.doors import MODEL
from tests.router.http.structured_doors import MESSAGES, PARAMETERS, TOOLS, answering, grammar_of
from tests.router.templates import HERMES
from tests.support.grammar_walks import accepts


class TestStructuredOutput:
    async def test_json_schema(self, tmp_path: Path) -> None:
        asked: Any = {"type": "json_schema", "json_schema": {"name": "w", "schema": PARAMETERS}}
        async with answering(tmp_path, '{"city": "Köln"}', HERMES) as (doors, client):
            answer = await client.chat.completions.create(
                model=MODEL, messages=MESSAGES, response_format=asked
            )
            grammar = grammar_of(doors)
        assert grammar is not None
        assert grammar.kind == "json_schema"
        assert accepts(grammar, '{"city": "Köln"}')
        assert not accepts(grammar, '{"city": 1}')
        jsonschema.validate(json.loads(answer.choices[0].message.content or ""), PARAMETERS)

    async def test_a_pydantic_model(self, tmp_path: Path) -> None:
        class Weather(pydantic.BaseModel):
            city: str
            days: list[int] | None

        async with answering(tmp_path, '{"city": "Köln", "days": [1]}', HERMES) as (_, client):
            answer = await client.chat.completions.parse(
                model=MODEL, messages=MESSAGES, response_format=Weather
            )
        assert answer.choices[0].message.parsed == Weather(city="Köln", days=[1])

    @pytest.mark.parametrize(
        ("extra", "good", "bad"),
        [
            ({"response_format": {"type": "json_object"}}, "{}", "[]"),
            ({"structured_outputs": {"regex": "a+"}}, "aa", "b"),
            ({"structured_outputs": {"choice": ["yes", "no"]}}, "no", "maybe"),
            ({"structured_outputs": {"json": {"type": "integer"}}}, "12", "{}"),
            ({"structured_outputs": {"json_object": True}}, "{}", "1"),
            ({"structured_outputs": {"grammar": 'start: "a" "b"*', "disable_fallback": False}}, "abb", "b"),
            ({"guided_json": '{"type": "null"}'}, "null", "1"),
            ({"guided_regex": "[0-9]"}, "1", "12"),
            ({"guided_choice": ["a"]}, "a", "b"),
            ({"guided_grammar": 'root ::= "x"'}, "x", "y"),
        ],
    )
    async def test_every_form_at_both_endpoints(
        self, tmp_path: Path, extra: dict[str, Any], good: str, bad: str
    ) -> None:
        async with answering(tmp_path, good, HERMES) as (doors, client):
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=extra)
            of_chat = grammar_of(doors)
            await client.completions.create(model=MODEL, prompt="hi", extra_body=extra)
            assert of_chat == grammar_of(doors)
        assert of_chat is not None
        assert accepts(of_chat, good)
        assert not accepts(of_chat, bad)

    async def test_text_is_the_default(self, tmp_path: Path) -> None:
        async with answering(tmp_path, "hi", HERMES) as (doors, client):
            await client.chat.completions.create(
                model=MODEL, messages=MESSAGES, response_format={"type": "text"}
            )
            assert grammar_of(doors) is None


EMPTY = {"type": "string", "minLength": 3, "maxLength": 2}
SCHEMA = "response_format.json_schema.schema"


def _format(schema: object, **more: object) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}
    }


def _tools(*functions: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": function} for function in functions], **more}


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        (_format({"properties": {"a": {"uniqueItems": True}}}), f"{SCHEMA}.properties.a.uniqueItems"),
        (_format({"patternProperties": {"^(?=a)": {}}}), f"{SCHEMA}.patternProperties.^(?=a)"),
        (_format({"anyOf": [{}, {"$ref": "#/$defs/x"}]}), f"{SCHEMA}.anyOf[1].$ref"),
        (_format({"items": {"type": "text"}}), f"{SCHEMA}.items.type"),
        # What only the engine knows.
        (
            _format({"type": "object", "required": ["a"], "properties": {"a": EMPTY}}),
            f"{SCHEMA}.properties.a",
        ),
        (_format({"type": "object", "properties": {"a": {}}}, strict=True), f"{SCHEMA}.additionalProperties"),
        (_format({"type": "array"}, strict=True), SCHEMA),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        (_tools({"name": "f"}, {"name": "f"}), "tools[1].function.name"),
        (_tools({"name": "a b"}), "tools[0].function.name"),
        (_tools({"name": "f", "parameters": {"type": "array"}}), "tools[0].function.parameters.type"),
        (
            _tools({"name": "f", "parameters": {"properties": {"a": {"not": {}}}}}, tool_choice="required"),
            "tools[0].function.parameters.properties.a.not",
        ),
        (
            _tools({"name": "f", "strict": True, "parameters": {}}),
            "tools[0].function.parameters.additionalProperties",
        ),
        (
            _tools({"name": "f"}, tool_choice={"type": "function", "function": {"name": "g"}}),
            "tool_choice.function.name",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        (_tools({"name": "f"}, tool_choice="any"), "tool_choice"),
        (_tools({"name": "f"}, tool_choice="required", guided_regex="a"), "guided_regex"),
    ],
)  # fmt: skip
async def test_what_cannot_be_done_is_refused_with_its_place(
    tmp_path: Path, extra: dict[str, Any], param: str
) -> None:
    async with answering(tmp_path, "hi", HERMES) as (doors, client):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=extra)
        assert caught.value.param is not None
        assert caught.value.param.startswith(param)
        assert doors.dispatcher.generations == []


async def test_a_model_whose_calls_cannot_be_read_gets_no_tools(tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    async with answering(tmp_path, "hi", template) as (_, client):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS)
        assert caught.value.param == "tools"
        await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="none")
