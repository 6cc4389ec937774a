from __future__ import annotations

import json
from typing import Any

import pytest

from kvrelay import (
    Client,
    FinishReason,
    InvalidRequestError,
    Message,
    ServerError,
    Tool,
    ToolCall,
    ToolCallDelta,
)
from kvrelay._assembly import Assembly
from kvrelay.options import generate_request, tokenize_request
from kvrelay.v1 import common_pb2, inference_pb2
from tests.client.scripted_server import Server, last, piece
from tests.client.test_options import as_dict

MESSAGES = [Message("user", "hi")]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_tools_and_what_is_asked_of_calls() -> None:
    options: Any = {
        "tools": [Tool("f", "does f", SCHEMA, strict=True), {"name": "g"}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    chat = as_dict(generate_request(None, MESSAGES, None, options))["chat"]
    assert chat["tools"] == [
        {"name": "f", "description": "does f", "parameters": json.dumps(SCHEMA), "strict": True},
        {"name": "g"},
    ]
    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == ("required", False)
    named: Any = {"tools": [Tool("f")], "named_tool": "f"}
    assert generate_request(None, MESSAGES, None, named).chat.named_tool == "f"
    assert tokenize_request(None, MESSAGES, None, False, named).chat.tools[0].name == "f"


def test_a_round_of_calls() -> None:
    messages = [
        Message("assistant", "", (ToolCall("c1", "f", "{}"),), reasoning="hm"),
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]
    assert as_dict(generate_request(None, messages, None, {}))["chat"]["messages"] == [
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "name": "f", "arguments": "{}"}],
            "reasoning": "hm",
        },
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"json_schema": SCHEMA, "strict": True}, {"json_schema": json.dumps(SCHEMA), "strict": True}),
        ({"json_schema": False}, {"json_schema": "false"}),
        ({"json_schema": '{"type": "null"}', "regex": None}, {"json_schema": '{"type": "null"}'}),
        ({"json_object": True}, {"json_object": True}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"choice": ["a", "b"]}, {"choice": {"texts": ["a", "b"]}}),
        ({"grammar": "start: /a/"}, {"grammar": "start: /a/"}),
    ],
)
def test_what_answers_match(options: Any, expected: dict[str, Any]) -> None:
    assert as_dict(generate_request("p", None, None, options)) == {
        "prompt": "p",
        "structured_outputs": expected,
    }


@pytest.mark.parametrize(
    ("messages", "options", "says"),
    [
        (None, {"tools": [Tool("f")]}, "tools is for a chat"),
        (MESSAGES, {"tools": [{"nome": "f"}]}, r"tools\[0\] needs name"),
        (MESSAGES, {"tools": [Tool("f", parameters={"a": object()})]}, r"tools\[0\]: "),
        (MESSAGES, {"tool_choice": 5}, "tool_choice: "),
        (MESSAGES, {"regex": "a", "choice": ["a"]}, "regex and choice cannot be combined"),
        (MESSAGES, {"json_schema": {"a": object()}}, "json_schema: "),
        (MESSAGES, {"strict": True}, "strict needs json_schema"),
        (MESSAGES, {"strict": True, "regex": "a"}, "strict needs json_schema"),
        (MESSAGES, {"choice": [1]}, "texts: "),
        ([{"role": "tool", "content": "x", "tool_calls": ["c"]}], {}, r"messages\[0\].tool_calls"),
        ([{"role": "user"}], {}, r"messages\[0\] needs role and content"),
    ],
)
def test_what_cannot_be_sent_is_named(messages: Any, options: Any, says: str) -> None:
    prompt = None if messages else "p"
    with pytest.raises(InvalidRequestError, match=says):
        generate_request(prompt, messages, None, options)


def _delta(index: int, arguments: str, *, call_id: str = "", name: str = "") -> inference_pb2.ToolCallDelta:
    return inference_pb2.ToolCallDelta(index=index, id=call_id, name=name, arguments=arguments)


def test_calls_and_reasoning_come_back(server: Server) -> None:
    def answer(_request: object, _context: object) -> Any:
        yield piece("", reasoning="let me ")
        yield piece("Wait.", reasoning="see")
        yield piece("", tool_calls=[_delta(0, '{"a"', call_id="c0", name="f")])
        yield piece("", tool_calls=[_delta(0, ": 1}"), _delta(1, "{}", call_id="c1", name="g")])
        end = last()
        end.finish_reason = common_pb2.FINISH_REASON_TOOL_CALLS
        yield end

    server.script = answer
    with Client(server.endpoint) as client:
        result = client.generate(messages=MESSAGES)
        with client.stream(messages=MESSAGES) as stream:
            chunks = list(stream)
    calls = (ToolCall("c0", "f", '{"a": 1}'), ToolCall("c1", "g", "{}"))
    assert (result.text, result.reasoning, result.tool_calls) == ("Wait.", "let me see", calls)
    assert result.finish_reason is FinishReason.TOOL_CALLS
    assert result.choices[0].message == Message("assistant", "Wait.", calls, reasoning="let me see")
    assert chunks[0].reasoning == "let me "
    assert chunks[2].tool_calls == (ToolCallDelta(0, "c0", "f", '{"a"'),)


def test_a_call_that_never_began() -> None:
    with pytest.raises(ServerError, match="tool call 1"):
        Assembly().add(piece("", tool_calls=[_delta(1, "{}")]))
