"""Structured output, tool calls and reasoning, as the `openai` package sees them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from router.generation import GrammarSpec
from tests.router.doors import MODEL, Doors, open_doors
from tests.router.templates import HERMES, LLAMA31, REASONING
from tests.support.grammar_walks import accepts
from tests.support.scripted_dispatcher import Script, ScriptedDispatcher, says

MESSAGES: Any = [{"role": "user", "content": "hi"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "description": "…", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
CALLS = (
    'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


@asynccontextmanager
async def answering(
    folder: Path, text: str, template: str, **script: Any
) -> AsyncIterator[tuple[Doors, openai.AsyncOpenAI]]:
    dispatcher = ScriptedDispatcher(Script(says(text), **script))
    async with (
        open_doors(folder, dispatcher, template=template, max_model_len=4096) as doors,
        openai.AsyncOpenAI(base_url=f"{doors.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield doors, client


def grammar_of(doors: Doors) -> GrammarSpec | None:
    return doors.dispatcher.generations[-1].request.sampling.grammar


async def test_calls(tmp_path: Path) -> None:
    async with answering(tmp_path, CALLS, HERMES) as (doors, client):
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert choice.message.tool_calls is not None
    called = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert called == [("get_weather", '{"city": "Köln"}'), ("now", "{}")]
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert grammar_of(doors) is None


@pytest.mark.parametrize("step", [1, 3, 1000])
async def test_calls_stream(tmp_path: Path, step: int) -> None:
    async with answering(tmp_path, "", HERMES) as (doors, client):
        doors.dispatcher.script = Script(says(CALLS, step=step))
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS, stream=True
        )
        content, calls, reasons = "", {}, []
        async for chunk in stream:
            [choice] = chunk.choices
            content += choice.delta.content or ""
            reasons.append(choice.finish_reason)
            for delta in choice.delta.tool_calls or ():
                if delta.id:
                    assert delta.index == len(calls), "the name comes once, before the arguments"
                    assert delta.type == "function"
                    calls[delta.index] = [delta.id, delta.function.name, ""]
                calls[delta.index][2] += delta.function.arguments or ""
    assert content == "Let me see."
    assert reasons[-1] == "tool_calls"
    assert set(reasons[:-1]) == {None}
    assert [call[1:] for call in calls.values()] == [["get_weather", '{"city": "Köln"}'], ["now", "{}"]]


async def test_the_stream_helper_puts_calls_together(tmp_path: Path) -> None:
    async with (
        answering(tmp_path, CALLS, HERMES) as (_, client),
        client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=TOOLS) as stream,
    ):
        async for _ in stream:
            pass
        answer = await stream.get_final_completion()
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert [call.function.name for call in calls] == ["get_weather", "now"]


async def test_an_answer_that_is_cut_off_is_no_finished_call(tmp_path: Path) -> None:
    async with answering(tmp_path, CALLS, HERMES) as (_, client):
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS, max_tokens=CALLS.index("Köln")
        )
    [choice] = answer.choices
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.arguments == '{"city": "'


async def test_without_calls_the_answer_just_stops(tmp_path: Path) -> None:
    async with answering(tmp_path, "<tool_call> is a marker", HERMES) as (_, client):
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].message.content == "<tool_call> is a marker"
        assert answer.choices[0].message.tool_calls is None


async def test_one_call_ends_the_answer_where_calls_are_not_parallel(tmp_path: Path) -> None:
    async with answering(tmp_path, CALLS, HERMES) as (doors, client):
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS, parallel_tool_calls=False
        )
        assert answer.choices[0].message.tool_calls is not None
        assert len(answer.choices[0].message.tool_calls) == 1
        assert answer.choices[0].finish_reason == "tool_calls"
        assert doors.dispatcher.states == ["finished"]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(CALLS[: CALLS.index("</tool_call>") + 12].encode())


async def test_tool_choice_none_hides_the_tools(tmp_path: Path) -> None:
    async with answering(tmp_path, CALLS, HERMES) as (doors, client):
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="none"
        )
        assert answer.choices[0].message.content == CALLS
        assert answer.choices[0].finish_reason == "stop"
        assert b"get_weather" not in bytes(
            token for token in doors.dispatcher.generations[0].request.prompt_token_ids if token < 256
        )


@pytest.mark.parametrize(
    ("choice", "good", "bad"),
    [
        (
            "required",
            [
                '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Köln","days": 3}}\n</tool_call>',
                '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
                '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
            ],
            [
                "",
                "hello",
                '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>',
                '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Köln","days": 0}}\n</tool_call>',
                '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>',
                '<tool_call>\n{"name": "later", "arguments": {}}\n</tool_call>',
            ],
        ),
        (
            {"type": "function", "function": {"name": "now"}},
            ['<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'],
            [
                '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Köln"}}\n</tool_call>',
                '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>' * 2,
            ],
        ),
    ],
    ids=["required", "named"],
)
async def test_a_grammar_holds_required_calls(
    tmp_path: Path, choice: Any, good: list[str], bad: list[str]
) -> None:
    async with answering(tmp_path, CALLS, HERMES) as (doors, client):
        await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice=choice)
        grammar = grammar_of(doors)
    assert grammar is not None
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


async def test_llama_calls(tmp_path: Path) -> None:
    text = '{"name": "get_weather", "parameters": {"city": "Köln"}}'
    async with answering(tmp_path, text, LLAMA31) as (doors, client):
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="required"
        )
        grammar = grammar_of(doors)
    assert grammar is not None
    assert accepts(grammar, text)
    assert not accepts(grammar, f"{text};{text}")
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.arguments == '{"city": "Köln"}'


async def test_a_whole_round_of_calls_reaches_the_template(tmp_path: Path) -> None:
    async with answering(tmp_path, CALLS, HERMES) as (doors, client):
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS)
        message = answer.choices[0].message
        assert message.tool_calls is not None
        history = [
            *MESSAGES,
            message.model_dump(),
            *(
                {"role": "tool", "tool_call_id": call.id, "content": f"result {index}"}
                for index, call in enumerate(message.tool_calls)
            ),
        ]
        await client.chat.completions.create(model=MODEL, messages=history, tools=TOOLS)
        prompt = bytes(
            token for token in doors.dispatcher.generations[-1].request.prompt_token_ids if token < 256
        ).decode()
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>' in prompt
    assert "<tool_response>\nresult 1\n</tool_response>" in prompt


THOUGHT = "<think>\nHm, 1 < 2.\n</think>\n\nYes."


@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_reasoning(tmp_path: Path, step: int) -> None:
    async with answering(tmp_path, "", REASONING) as (doors, client):
        doors.dispatcher.script = Script(says(THOUGHT, step=step))
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        message = answer.choices[0].message.model_dump()
        assert (message["content"], message["reasoning_content"]) == ("Yes.", "Hm, 1 < 2.")
        assert message["reasoning"] == message["reasoning_content"]
        assert answer.usage is not None
        assert answer.usage.completion_tokens_details is not None
        counted = answer.usage.completion_tokens_details.reasoning_tokens
        assert counted == THOUGHT.index("</think>") + len("</think>")
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        content = reasoning = ""
        async for chunk in stream:
            delta = chunk.choices[0].delta.model_dump()
            content += delta["content"] or ""
            reasoning += delta.get("reasoning_content") or ""
        assert (content, reasoning) == ("Yes.", "Hm, 1 < 2.")


async def test_reasoning_that_the_prompt_began_or_forbade(tmp_path: Path) -> None:
    async with answering(tmp_path, "Hm.\n</think>\nYes.", REASONING) as (doors, client):
        opened = {"chat_template_kwargs": {"open_thinking": True}}
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=opened)
        message = answer.choices[0].message.model_dump()
        assert (message["content"], message["reasoning_content"]) == ("Yes.", "Hm.")
        hidden = {**opened, "include_reasoning": False}
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=hidden)
        assert answer.choices[0].message.content == "Yes."
        assert "reasoning_content" not in answer.choices[0].message.model_dump()
        doors.dispatcher.script = Script(says("Yes."))
        without = {"chat_template_kwargs": {"enable_thinking": False}}
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=without)
        assert answer.choices[0].message.content == "Yes."
        prompt = bytes(
            token for token in doors.dispatcher.generations[-1].request.prompt_token_ids if token < 256
        )
        assert prompt.endswith(b"<think>\n\n</think>\n\n")


async def test_calls_after_reasoning(tmp_path: Path) -> None:
    text = f"<think>A <tool_call> maybe?</think>\n{CALLS}"
    async with answering(tmp_path, text, HERMES + REASONING) as (doors, client):
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="required"
        )
        grammar = grammar_of(doors)
    message = answer.choices[0].message
    assert message.model_dump()["reasoning_content"] == "A <tool_call> maybe?"
    assert message.content == "Let me see."
    assert message.tool_calls is not None
    assert len(message.tool_calls) == 2
    assert grammar is not None
    assert accepts(grammar, text.replace("Let me see.\n", ""))


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
        import pydantic

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
