from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

import pytest
from google.protobuf.json_format import MessageToDict

from kvrelay import GenerateOptions, InvalidRequestError, Message
from kvrelay.options import generate_request, tokenize_request
from kvrelay.v1 import inference_pb2


def as_dict(message: Any) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True)


def test_what_is_not_said_is_not_sent() -> None:
    assert as_dict(generate_request("p", None, None, {})) == {"prompt": "p"}
    nothing: GenerateOptions = {
        "temperature": None,
        "stop": None,
        "model": None,
        "trace": None,
        "timeout": None,
    }
    assert as_dict(generate_request("p", None, None, nothing)) == {"prompt": "p"}


def test_every_option_arrives_also_where_it_is_zero() -> None:
    options: GenerateOptions = {
        "model": "demo",
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 0,
        "seed": 2**64 - 1,
        "max_tokens": 0,
        "min_tokens": 0,
        "stop": ["a", "b"],
        "stop_token_ids": [1, 2],
        "ignore_eos": False,
        "n": 3,
        "timeout": 1.0,
        "request_id": "r",
        "cache_salt": "s",
        "trace": True,
    }
    assert options.keys() == get_type_hints(GenerateOptions).keys()
    assert as_dict(generate_request(None, None, [7, 8], options)) == {
        "model": "demo",
        "token_ids": {"ids": [7, 8]},
        "sampling": {
            "temperature": 0.0,
            "top_p": 0.5,
            "top_k": 0,
            "seed": str(2**64 - 1),
            "max_tokens": 0,
            "min_tokens": 0,
            "stop": ["a", "b"],
            "stop_token_ids": [1, 2],
            "ignore_eos": False,
            "n": 3,
        },
        "request_id": "r",
        "cache_salt": "s",
        "trace": True,
    }


def test_every_field_of_the_request_can_be_asked_for() -> None:
    sampling = {field.name for field in inference_pb2.SamplingOptions.DESCRIPTOR.fields}
    request = {field.name for field in inference_pb2.GenerateRequest.DESCRIPTOR.fields}
    inputs = {"prompt", "chat", "token_ids", "sampling"}
    assert get_type_hints(GenerateOptions).keys() == sampling | (request - inputs) | {"timeout"}


def test_one_stop_string_is_not_taken_apart() -> None:
    assert generate_request("p", None, None, {"stop": "end"}).sampling.stop == ["end"]


def test_messages_as_objects_and_as_mappings() -> None:
    messages: list[Message | dict[str, str]] = [
        Message("system", "be brief"),
        {"role": "user", "content": "hi"},
    ]
    expected = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert as_dict(generate_request(None, messages, None, {}))["chat"]["messages"] == expected
    assert as_dict(tokenize_request(None, messages, "demo")) == {
        "model": "demo",
        "chat": {"messages": expected},
    }


@pytest.mark.parametrize(
    ("inputs", "which"),
    [(("", None, None), "prompt"), ((None, [], None), "chat"), ((None, None, []), "token_ids")],
)
def test_an_empty_input_is_still_an_input(inputs: tuple[Any, Any, Any], which: str) -> None:
    # The server refuses it, and says why.
    assert generate_request(*inputs, {}).WhichOneof("input") == which


@pytest.mark.parametrize("inputs", [(None, None, None), ("p", [], None), ("p", None, [1]), (None, [], [1])])
def test_exactly_one_input(inputs: tuple[Any, Any, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="exactly one of prompt, messages, token_ids"):
        generate_request(*inputs, {})
    with pytest.raises(InvalidRequestError, match="exactly one of prompt, messages"):
        tokenize_request(None, None, None)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 2**32),
        ("top_k", 1.5),
        ("temperature", "hot"),
        ("seed", -1),
        ("stop", [1]),
        ("stop_token_ids", [-1]),
        ("model", 1),
        ("request_id", "\ud800"),
    ],
)
def test_values_that_cannot_be_sent_are_named(option: str, value: object) -> None:
    options: Any = {option: value}
    with pytest.raises(InvalidRequestError, match=f"^{option}: "):
        generate_request("p", None, None, options)


@pytest.mark.parametrize("prompt", [1, b"\xff", "\ud800"])
def test_prompts_that_cannot_be_sent(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^prompt: "):
        generate_request(prompt, None, None, {})


@pytest.mark.parametrize("token_ids", [[-1], [2**32], ["a"]])
def test_token_ids_that_cannot_be_sent(token_ids: Sequence[Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"^ids: "):
        generate_request(None, None, token_ids, {})


@pytest.mark.parametrize(
    "messages", ["hi", ["hi"], [{"role": "user"}], [{"role": "user", "content": "x", "name": "y"}]]
)
def test_messages_of_another_form(messages: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\[0\] needs role and content"):
        generate_request(None, messages, None, {})


def test_a_misspelt_option_is_a_type_error() -> None:
    options: Any = {"temprature": 1.0}
    with pytest.raises(TypeError, match="'temprature'"):
        generate_request("p", None, None, options)
