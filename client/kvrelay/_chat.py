"""Chats and what their answers must match, as messages of the wire."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvrelay.errors import InvalidRequestError
from kvrelay.types import Message, Tool, ToolCall
from kvrelay.v1 import inference_pb2

Messages = Sequence[Message | Mapping[str, Any]]
Tools = Sequence[Tool | Mapping[str, Any]]

CHAT_OPTIONS = ("tools", "tool_choice", "named_tool", "parallel_tool_calls")
ANSWER_OPTIONS = ("json_schema", "json_object", "regex", "choice", "grammar")
_MESSAGE_FIELDS = frozenset(field.name for field in inference_pb2.ChatMessage.DESCRIPTOR.fields)


def build(message: type[Any], field: str, value: object) -> Any:
    """`message(field=value)`, with an error that names the field."""
    try:
        return message(**{field: value})
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"{field}: {error}") from error


def chat_of(messages: Messages, options: Mapping[str, Any]) -> inference_pb2.Chat:
    """The messages with the tools. `options` are those of CHAT_OPTIONS. Raises InvalidRequestError."""
    chat = inference_pb2.Chat()
    chat.messages.extend(_message(message, position) for position, message in enumerate(messages))
    for name, value in options.items():
        if name == "tools":
            chat.tools.extend(_tool(tool, position) for position, tool in enumerate(value or ()))
        elif value is not None:
            chat.MergeFrom(build(inference_pb2.Chat, name, value))
    return chat


def structured_outputs(options: Mapping[str, Any], strict: bool) -> inference_pb2.StructuredOutputs | None:
    """What the answer matches; None for anything. Raises InvalidRequestError for two things."""
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    if options.get("json_schema") is False:
        given["json_schema"] = False
    if strict and "json_schema" not in given:
        raise InvalidRequestError("strict needs json_schema")
    if len(given) > 1:
        raise InvalidRequestError(f"{' and '.join(given)} cannot be combined; give one of them")
    outputs = inference_pb2.StructuredOutputs(strict=strict)
    for name, value in given.items():
        if name == "json_schema" and not isinstance(value, str):
            value = _json_text(name, value)
        if name == "choice":
            value = build(inference_pb2.Texts, "texts", value)
        outputs.MergeFrom(build(inference_pb2.StructuredOutputs, name, value))
        return outputs
    return None


def _message(message: Message | Mapping[str, Any], position: int) -> inference_pb2.ChatMessage:
    if isinstance(message, Message):
        parts: dict[str, Any] = {name: getattr(message, name) for name in _MESSAGE_FIELDS}
    elif isinstance(message, Mapping):
        parts = dict(message)
    else:
        parts = {}
    if not parts.keys() <= _MESSAGE_FIELDS or not {"role", "content"} <= parts.keys():
        raise InvalidRequestError(
            f"messages[{position}] needs role and content, and may have "
            "tool_calls, tool_call_id, name and reasoning"
        )
    built = inference_pb2.ChatMessage()
    for call in parts.pop("tool_calls", None) or ():
        if not isinstance(call, ToolCall):
            raise InvalidRequestError(f"messages[{position}].tool_calls must be of the type ToolCall")
        built.tool_calls.add(id=call.id, name=call.name, arguments=call.arguments)
    for field, text in parts.items():
        built.MergeFrom(build(inference_pb2.ChatMessage, field, text))
    return built


def _tool(tool: Tool | Mapping[str, Any], position: int) -> inference_pb2.Tool:
    if not isinstance(tool, Tool):
        try:
            tool = Tool(**tool)
        except TypeError as error:
            raise InvalidRequestError(
                f"tools[{position}] needs name, and may have description, parameters and strict"
            ) from error
    built = inference_pb2.Tool()
    parameters = "" if tool.parameters is None else _json_text(f"tools[{position}]", tool.parameters)
    for field, value in (
        ("name", tool.name),
        ("description", tool.description),
        ("parameters", parameters),
        ("strict", tool.strict),
    ):
        built.MergeFrom(build(inference_pb2.Tool, field, value))
    return built


def _json_text(name: str, value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"{name}: {error}") from error
