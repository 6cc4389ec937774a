"""Structured output, tools, calls and reasoning over gRPC and through the SDK: what HTTP does too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvrelay import AsyncClient, FinishReason, InvalidRequestError, Message, Tool
from router.generation import GrammarSpec
from tests.router.doors import Doors, open_doors
from tests.router.templates import HERMES, REASONING
from tests.support.grammar_walks import accepts
from tests.support.scripted_dispatcher import Script, ScriptedDispatcher, says

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
MESSAGES = [Message("user", "hi")]


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[Doors]:
    dispatcher = ScriptedDispatcher(Script(says(f"<think>Hm.</think>\nSo:\n{CALL}")))
    async with open_doors(tmp_path, dispatcher, template=HERMES + REASONING, max_model_len=4096) as opened:
        yield opened


@pytest.fixture
async def client(doors: Doors) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(doors.grpc_address) as opened:
        yield opened


def grammar_of(doors: Doors) -> GrammarSpec | None:
    return doors.dispatcher.generations[-1].request.sampling.grammar


async def test_calls_and_reasoning(doors: Doors, client: AsyncClient) -> None:
    result = await client.generate(messages=MESSAGES, tools=[Tool("f", parameters=SCHEMA)])
    assert (result.text, result.reasoning) == ("So:", "Hm.")
    [call] = result.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("f", {"a": 1})
    assert result.finish_reason is FinishReason.TOOL_CALLS
    assert result.usage.reasoning_tokens == len("<think>Hm.</think>")
    assert grammar_of(doors) is None
    history = [*MESSAGES, result.choices[0].message, Message("tool", "42", tool_call_id=call.id)]
    await client.generate(messages=history, tools=[Tool("f", parameters=SCHEMA)])
    prompt = doors.dispatcher.generations[-1].request.prompt_token_ids
    text = bytes(token for token in prompt if token < 256).decode()
    assert CALL in text
    assert "<tool_response>\n42\n" in text
    assert "<think>\nHm.\n</think>" in text
    hidden = await client.generate(messages=MESSAGES, include_reasoning=False)
    assert hidden.reasoning == ""


async def test_plain_prompts_are_not_read(client: AsyncClient) -> None:
    result = await client.generate("hi")
    assert result.text == f"<think>Hm.</think>\nSo:\n{CALL}"
    assert result.finish_reason is FinishReason.STOP


async def test_required_and_named_calls(doors: Doors, client: AsyncClient) -> None:
    tools = [Tool("f", parameters=SCHEMA), Tool("g")]
    await client.generate(messages=MESSAGES, tools=tools, tool_choice="required")
    grammar = grammar_of(doors)
    assert grammar is not None
    assert accepts(grammar, CALL)
    assert not accepts(grammar, CALL.replace("1", '"x"'))
    await client.generate(messages=MESSAGES, tools=tools, named_tool="g")
    grammar = grammar_of(doors)
    assert grammar is not None
    assert not accepts(grammar, CALL)


@pytest.mark.parametrize(
    ("options", "good", "bad"),
    [
        ({"json_schema": SCHEMA}, '{"a": 1}', "{}"),
        ({"json_object": True}, "{}", "1"),
        ({"regex": "a+"}, "aa", "b"),
        ({"choice": ["yes", "no"]}, "no", "maybe"),
        ({"grammar": 'start: "x"'}, "x", "y"),
    ],
)
async def test_what_answers_match(
    doors: Doors, client: AsyncClient, options: Any, good: str, bad: str
) -> None:
    await client.generate("hi", **options)
    grammar = grammar_of(doors)
    assert grammar is not None
    assert accepts(grammar, good)
    assert not accepts(grammar, bad)


@pytest.mark.parametrize(
    ("options", "says_"),
    [
        ({"json_schema": {"items": {"not": {}}}}, "structured_outputs.json_schema.items.not"),
        ({"json_schema": SCHEMA, "strict": True}, "structured_outputs.json_schema.additionalProperties"),
        ({"regex": "("}, "structured_outputs.regex"),
        ({"choice": [""]}, "structured_outputs.choice"),
        ({"grammar": "start: x"}, "structured_outputs.grammar"),
        ({"tools": [Tool("f"), Tool("f")]}, "chat.tools[1].name"),
        ({"tools": [Tool("a b")]}, "chat.tools[0].name"),
        ({"tools": [Tool("f", parameters={"type": "null"})]}, "chat.tools[0].parameters.type"),
        (
            {"tools": [Tool("f", parameters={"properties": {"a": {"if": {}}}})], "tool_choice": "required"},
            "chat.tools[0].parameters.properties.a.if",
        ),
        ({"tools": [Tool("f")], "tool_choice": "maybe"}, "chat.tool_choice"),
        ({"tools": [Tool("f")], "named_tool": "g"}, "named_tool"),
        ({"tools": [Tool("f")], "named_tool": "f", "tool_choice": "auto"}, "chat.named_tool"),
        ({"tools": [Tool("f")], "tool_choice": "required", "regex": "a"}, "structured_outputs.regex"),
    ],
)  # fmt: skip
async def test_what_cannot_be_done_is_refused_with_its_place(
    doors: Doors, client: AsyncClient, options: Any, says_: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await client.generate(messages=MESSAGES, **options)
    assert says_ in str(caught.value)
    assert doors.dispatcher.generations == []
