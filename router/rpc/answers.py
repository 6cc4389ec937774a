"""What gRPC clients ask of answers and chats beside sampling, for the shared request path and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from pydantic import ValidationError

from kvrelay.v1 import inference_pb2
from router.errors import InvalidRequestError, from_validation
from router.model_reading import AskedOfAnswers
from router.structured.asked import AskedAnswer, check_choices
from router.tools.asked import AskedCalls, ToolFields
from router.tools.history import CalledFunction, ToolCall
from router.tools.parsers.base import CallArguments, CallBegin

_DEMANDS = ("none", "auto", "required")


def asked_of_answers(request: inference_pb2.GenerateRequest) -> AskedOfAnswers:
    """What is asked of the answers. Raises InvalidRequestError."""
    answer = _asked_answer(request.structured_outputs) if request.HasField("structured_outputs") else None
    shows = not request.HasField("include_reasoning") or request.include_reasoning
    if request.WhichOneof("input") != "chat":
        if request.HasField("include_reasoning"):
            raise InvalidRequestError(
                "include_reasoning is for a chat.", "include_reasoning", "invalid_value"
            )
        return AskedOfAnswers(answer)
    goes_on = request.prompt_options.continue_final_message and request.chat.messages
    return AskedOfAnswers(
        answer=answer,
        calls=asked_calls(request.chat),
        chat=True,
        continued=request.chat.messages[-1].content if goes_on else "",
        shows_reasoning=shows,
    )


def _asked_answer(given: inference_pb2.StructuredOutputs) -> AskedAnswer:
    kind = given.WhichOneof("kind")
    param = f"structured_outputs.{kind}"
    if given.strict and kind != "json_schema":
        raise InvalidRequestError(
            "structured_outputs.strict needs json_schema.", "structured_outputs.strict", "invalid_value"
        )
    match kind:
        case "json_schema":
            return AskedAnswer("json_schema", given.json_schema, param, given.strict)
        case "regex":
            return AskedAnswer("regex", given.regex, param)
        case "choice":
            return AskedAnswer("choice", json.dumps(check_choices(list(given.choice.texts), param)), param)
        case "grammar":
            return AskedAnswer("grammar", given.grammar, param)
        case "json_object" if given.json_object:
            return AskedAnswer("json_object", "", param)
        case _:
            names = [field.name for field in given.DESCRIPTOR.oneofs_by_name["kind"].fields]
            raise InvalidRequestError(
                f"structured_outputs needs one of: {', '.join(names)}.",
                "structured_outputs",
                "missing_parameter",
            )


def asked_calls(chat: inference_pb2.Chat) -> AskedCalls | None:
    """What a chat asks of calls; None without tools. Raises InvalidRequestError."""
    if chat.tool_choice and chat.named_tool:
        raise InvalidRequestError(
            "chat.named_tool excludes chat.tool_choice.", "chat.named_tool", "invalid_value"
        )
    if chat.tool_choice not in ("", *_DEMANDS):
        raise InvalidRequestError(
            f"chat.tool_choice must be one of: {', '.join(_DEMANDS)}.", "chat.tool_choice", "invalid_value"
        )
    choice: object = chat.tool_choice or None
    if chat.named_tool:
        choice = {"type": "function", "function": {"name": chat.named_tool}}
    values = {
        "tools": [_tool(tool, index) for index, tool in enumerate(chat.tools)],
        "tool_choice": choice,
        "parallel_tool_calls": chat.parallel_tool_calls if chat.HasField("parallel_tool_calls") else None,
    }
    try:
        calls = ToolFields.model_validate(values).asked_calls()
    except ValidationError as error:
        raise _renamed(from_validation(error)) from None
    except InvalidRequestError as error:
        raise _renamed(error) from None
    if calls is None:
        return None
    functions = tuple(replace(each, param=_own_name(each.param)) for each in calls.functions)
    return replace(calls, functions=functions, offer="chat.tool_choice or chat.named_tool")


def _tool(tool: inference_pb2.Tool, index: int) -> Mapping[str, object]:
    parameters: object = None
    if tool.parameters:
        try:
            parameters = json.loads(tool.parameters)
        except (ValueError, RecursionError) as error:
            param = f"chat.tools[{index}].parameters"
            raise InvalidRequestError(
                f"{param} is no JSON: {error}.", param, "invalid_json_schema"
            ) from error
    function = {
        "name": tool.name,
        "description": tool.description or None,
        "parameters": parameters,
        "strict": tool.strict,
    }
    return {"type": "function", "function": function}


def _own_name(param: str) -> str:
    """The name that a parameter of HTTP's has in the proto."""
    if param.startswith("tool_choice.function"):
        return "chat.named_tool"
    return "chat." + param.replace("].function.", "].")


def _renamed(error: InvalidRequestError) -> InvalidRequestError:
    if error.param is None:
        return error
    name = _own_name(error.param)
    return InvalidRequestError(error.message.replace(error.param, name), name, error.code)


def template_message(message: inference_pb2.ChatMessage, param: str) -> dict[str, object]:
    """A message under the names and in the form that templates read.

    Args:
        message: as received.
        param: names it in errors.

    Raises InvalidRequestError.
    """
    optional = {
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning,
    }
    given: dict[str, object] = {"role": message.role, "content": message.content}
    given.update({name: value for name, value in optional.items() if value})
    if message.tool_calls:
        for index, call in enumerate(message.tool_calls):
            for field in ("id", "name"):
                if not getattr(call, field):
                    name = f"{param}.tool_calls[{index}].{field}"
                    raise InvalidRequestError(f"{name} must not be empty.", name, "missing_parameter")
        given["tool_calls"] = [
            ToolCall(
                id=call.id,
                type="function",
                function=CalledFunction(name=call.name, arguments=call.arguments),
            ).for_template()
            for call in message.tool_calls
        ]
    return given


def call_delta(piece: CallBegin | CallArguments) -> inference_pb2.ToolCallDelta:
    """What is new of a call."""
    if isinstance(piece, CallBegin):
        return inference_pb2.ToolCallDelta(index=piece.index, id=piece.call_id, name=piece.name)
    return inference_pb2.ToolCallDelta(index=piece.index, arguments=piece.text)
