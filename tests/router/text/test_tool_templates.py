"""Chats with tools, calls, results and reasoning make the prompts that transformers makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from router.http.schema.chat import ChatCompletionRequest
from router.text.chat_template import ChatTemplate
from tests.router.templates import HERMES, LLAMA31, REASONING
from tests.router.text.test_chat_template import with_template

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now>.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]


def _called(arguments: object) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        ],
    }


ROUND: list[dict[str, Any]] = [
    {"role": "user", "content": "Köln?"},
    _called({"city": "Köln", "days": [1, 2]}),
    {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "15 °C"},
]


@pytest.mark.parametrize("template", [HERMES, LLAMA31], ids=["hermes", "llama31"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["without", "with"])
def test_a_round_equals_transformers(
    tmp_path: Path, template: str, tools: list[dict[str, Any]] | None
) -> None:
    folder = with_template(tmp_path, template)
    reference = AutoTokenizer.from_pretrained(folder)
    expected = reference.apply_chat_template(ROUND, tools=tools, tokenize=False, add_generation_prompt=True)
    sent = json.loads(json.dumps(ROUND))
    # Clients write the arguments as text, and nothing where there is nothing to say.
    sent[1]["tool_calls"][0]["function"]["arguments"] = json.dumps({"city": "Köln", "days": [1, 2]})
    sent[1]["content"] = None
    body = ChatCompletionRequest.from_json({"model": "m", "messages": sent, "tools": tools})
    [prompt] = body.prompts()
    assert ChatTemplate.load(folder).render(prompt.messages, tools=prompt.tools) == expected
    assert ("get_weather" in expected.partition("Köln")[0]) is bool(tools)


def test_arguments_that_are_no_object_stay_text() -> None:
    for arguments in ("no json", "[1]", '{"a": '):
        body = ChatCompletionRequest.from_json({"model": "m", "messages": [_called(arguments)]})
        [prompt] = body.prompts()
        [call] = prompt.messages[0]["tool_calls"]
        assert call["function"]["arguments"] == arguments


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_earlier_reasoning_reaches_the_template(tmp_path: Path, name: str) -> None:
    folder = with_template(tmp_path, REASONING)
    messages = [{"role": "assistant", "content": "Yes.", name: "Hm."}, {"role": "user", "content": "No?"}]
    body = ChatCompletionRequest.from_json({"model": "m", "messages": messages})
    [prompt] = body.prompts()
    text = ChatTemplate.load(folder).render(prompt.messages)
    assert "<think>\nHm.\n</think>\n\nYes.<|im_end|>" in text
    reference = AutoTokenizer.from_pretrained(folder)
    renamed = [{"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}, messages[1]]
    assert text == reference.apply_chat_template(renamed, tokenize=False, add_generation_prompt=True)
