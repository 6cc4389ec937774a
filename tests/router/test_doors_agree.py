"""HTTP, gRPC and the SDK take the same parameters, with the same ranges, defaults and units."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_type_hints

import annotated_types
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kvrelay import GenerateOptions, PromptOptions
from router.http.schema.chat import ChatCompletionRequest, ChatMessage
from router.http.schema.completions import CompletionRequest
from router.http.schema.tokens import TokenizeRequest
from router.prompt_options import ChatOptions
from router.sampling_options import SamplingOptions
from router.speculation_options import SpeculationOptions

PROTO = (Path(__file__).parents[2] / "proto/kvrelay/v1/inference.proto").read_text()
FIELD = re.compile(
    r"((?:^ *//.*\n)+)^ *(?:optional |repeated )?(?:[\w.]+|map<[^>]+>) (\w+) = \d+;", re.MULTILINE
)

# What one door has and the other has not, and why.
HTTP_ALONE = {
    "prompt": "an input, in gRPC one of three",
    "messages": "the same",
    "stream": "every answer streams in gRPC",
    "stream_options": "the last message of a gRPC stream has the usage, and each its token ids",
    "timeout": "gRPC has deadlines of its own",
    "max_completion_tokens": "OpenAI's second name of max_tokens",
    "top_logprobs": "a chat's form of logprobs",
    "return_token_ids": "gRPC always returns them",
    "return_tokens_as_token_ids": "gRPC always names tokens by id and bytes",
    "user": "no effect",
    "safety_identifier": "no effect",
    "prompt_cache_key": "no effect",
    "metadata": "no effect",
    "response_format": "OpenAI's form of structured_outputs",
    "guided_json": "an older form of structured_outputs",
    "guided_regex": "the same",
    "guided_choice": "the same",
    "guided_grammar": "the same",
}
GRPC_ALONE = {
    "chat": "an input",
    "token_ids": "an input",
    "prompt": "an input",
    "sampling": "holds fields that HTTP has beside the others",
    "prompt_options": "the same",
    "request_id": "HTTP has the header x-request-id",
    "trace": "OpenAI's answers have no timeline",
    "named_tool": "in HTTP a form of tool_choice",
}
# The same parameter, described for other names or other types.
RANGES_THAT_DIFFER = {
    "seed": "the message has an unsigned number, JSON any",
    "model": "the list of models has another name, and OpenAI's clients always send the model",
    "tool_choice": "in HTTP it also names the tool",
}


def proto_fields(message: str) -> dict[str, str]:
    """Descriptions of a message's fields: their comments on one line."""
    start = PROTO.index(f"message {message} {{")
    block = PROTO[start : PROTO.index("\n}\n", start)]
    return {
        name: " ".join(line.strip().removeprefix("//").strip() for line in comment.strip().splitlines())
        for comment, name in FIELD.findall(block)
    }


def part(description: str, name: str) -> str:
    """What stands behind "Range:", "Default:" or "Unit:"."""
    match = re.search(rf"{name}: (.*?)\.(?= (?:Default|Unit): |$)", description)
    assert match, f"{name} is missing: {description}"
    return match[1]


def http_fields(*models: type[BaseModel]) -> dict[str, FieldInfo]:
    return {name: field for model in models for name, field in model.model_fields.items()}


TOOLS = {name: field for name, field in proto_fields("Chat").items() if name != "messages"}
GRPC = {
    **proto_fields("SamplingOptions"),
    **proto_fields("PromptOptions"),
    **TOOLS,
    **proto_fields("GenerateRequest"),
}
HTTP = http_fields(ChatCompletionRequest, CompletionRequest)
SHARED = http_fields(SamplingOptions, ChatOptions)
CHECKED = {**HTTP, **SHARED, **http_fields(SpeculationOptions)}


def test_both_doors_take_the_same_parameters() -> None:
    assert len(SHARED) > 25
    assert HTTP.keys() - GRPC.keys() == HTTP_ALONE.keys() - {"prompt"}
    assert GRPC.keys() - HTTP.keys() == GRPC_ALONE.keys() - {"prompt"}
    assert SHARED.keys() == proto_fields("SamplingOptions").keys() | proto_fields("PromptOptions").keys()


def test_a_chat_takes_what_a_plain_prompt_takes() -> None:
    chat, plain = ChatCompletionRequest.model_fields.keys(), CompletionRequest.model_fields.keys()
    assert plain - chat == {"prompt", "best_of", "echo"}
    template = ChatOptions.model_fields.keys() - plain
    tools = TOOLS.keys() - {"named_tool"}
    names = {"messages", "max_completion_tokens", "top_logprobs", "include_reasoning"}
    assert chat - plain == {*names, *template, *tools}


def test_tokenizing_takes_what_makes_a_prompt() -> None:
    options = proto_fields("PromptOptions").keys()
    assert options == ChatOptions.model_fields.keys()
    assert options <= TokenizeRequest.model_fields.keys()
    own = proto_fields("TokenizeRequest").keys() - {"chat", "prompt_options"}
    # Tools are in gRPC a part of the chat.
    assert own == TokenizeRequest.model_fields.keys() - options - {"messages", "tools"}


def test_speculation_is_the_same_at_both_doors() -> None:
    said = proto_fields("SpeculationOptions")
    assert said.keys() == SpeculationOptions.model_fields.keys()
    for name, field in SpeculationOptions.model_fields.items():
        for what in ("Range", "Default", "Unit"):
            assert part(said[name], what) == part(field.description or "", what)


def test_the_sdk_takes_what_grpc_takes() -> None:
    inputs = {"prompt", "chat", "token_ids", "sampling", "prompt_options"}
    # Of structured_outputs each form is an option.
    forms = proto_fields("StructuredOutputs").keys()
    taken = (GRPC.keys() - inputs - {"structured_outputs"}) | forms
    assert get_type_hints(GenerateOptions).keys() - {"timeout"} == taken
    making = proto_fields("PromptOptions").keys() | TOOLS.keys() - {"parallel_tool_calls"}
    assert get_type_hints(PromptOptions).keys() == making
    for name in get_type_hints(GenerateOptions):
        described = (PromptOptions.__doc__ or "") + (GenerateOptions.__doc__ or "")
        assert re.search(rf"^ {{8}}{name}: \S", described, re.MULTILINE), name


@pytest.mark.parametrize("name", sorted(GRPC.keys() & HTTP.keys() - {"prompt", *RANGES_THAT_DIFFER}))
@pytest.mark.parametrize("what", ["Range", "Default", "Unit"])
def test_they_say_the_same(name: str, what: str) -> None:
    # A chat's logprobs are a switch; gRPC has the form of plain completions.
    field = SHARED.get(name) or HTTP[name]
    assert part(GRPC[name], what) == part(field.description or "", what)


def number(text: str) -> float:
    """A bound as a number; powers are written as such."""
    match = re.fullmatch(r"(-?)(\d+)\^(\d+)( - 1)?", text)
    if match:
        value = int(match[2]) ** int(match[3]) - (1 if match[4] else 0)
        return -value if match[1] else value
    return float(text)


def bounds_of(field: FieldInfo) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for constraint in field.metadata:
        for kind in ("ge", "gt", "le", "lt"):
            if isinstance(constraint, annotated_types.GroupedMetadata):
                continue
            value = getattr(constraint, kind, None)
            if value is not None:
                found[kind] = value
    return found


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, field in CHECKED.items()
        if re.fullmatch(r"[\[(]-?[\d^]+, -?[\d^]+(?: - 1)?\]", part(field.description or "", "Range"))
    ],
)
def test_ranges_are_those_that_are_checked(name: str) -> None:
    field = CHECKED[name]
    said = part(field.description or "", "Range")
    low, high = (number(bound) for bound in said[1:-1].split(", "))
    checked = bounds_of(field)
    assert checked["gt" if said[0] == "(" else "ge"] == low
    if "lt" in checked:
        assert checked["lt"] == high + 1
    else:
        assert checked["le"] == high


def test_messages_of_a_chat() -> None:
    assert proto_fields("ChatMessage").keys() <= ChatMessage.model_fields.keys()
