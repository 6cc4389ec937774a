from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

import pytest
from google.protobuf.json_format import MessageToDict

from kvrelay import GenerateOptions, InvalidRequestError, Message, PromptOptions
from kvrelay._chat import ANSWER_OPTIONS, CHAT_OPTIONS
from kvrelay.options import detokenize_request, generate_request, tokenize_request
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


SAMPLING: dict[str, Any] = {
    "temperature": 0.0, "top_p": 0.5, "top_k": -1, "min_p": 0.0, "typical_p": 0.5, "presence_penalty": 0.0,
    "frequency_penalty": -0.5, "repetition_penalty": 1.5, "bad_words": ["c"], "allowed_token_ids": [3],
    "max_tokens": 0, "min_tokens": 0, "stop": ["a", "b"], "stop_token_ids": [1, 2],
    "include_stop_str_in_output": False, "ignore_eos": False, "skip_special_tokens": False,
    "spaces_between_special_tokens": False, "n": 3, "best_of": 4, "echo": False, "logprobs": 0,
    "prompt_logprobs": 0,
}  # fmt: skip
PROMPT: dict[str, Any] = {
    "add_special_tokens": False,
    "truncate_prompt_tokens": -1,
    "add_generation_prompt": False,
    "continue_final_message": False,
    "chat_template_kwargs": {"deep": {"list": [1.0, None, "x", True]}},
}


def test_every_option_arrives_also_where_it_is_zero() -> None:
    request: dict[str, Any] = {"model": "demo", "request_id": "r", "cache_salt": "s", "trace": True}
    request |= {"priority": -1, "include_reasoning": False}
    request["speculation"] = {"method": "ngram", "num_speculative_tokens": 3}
    seeds: Any = {"seed": 2**64 - 1, "logit_bias": {7: -0.5}, "timeout": 1.0}
    options: Any = {**request, **SAMPLING, **PROMPT, **seeds}
    # Of these not all can be given at once: see test_chat_options.py.
    assert options.keys() == get_type_hints(GenerateOptions).keys() - {
        *CHAT_OPTIONS,
        *ANSWER_OPTIONS,
        "strict",
    }
    assert as_dict(generate_request(None, None, [7, 8], options)) == {
        **request,
        "token_ids": {"ids": [7, 8]},
        "sampling": {**SAMPLING, "seed": str(2**64 - 1), "logit_bias": {"7": -0.5}},
        "prompt_options": PROMPT,
    }


def test_every_option_of_a_tokenization_arrives() -> None:
    options: Any = PROMPT
    assert options.keys() == get_type_hints(PromptOptions).keys() - {*CHAT_OPTIONS}
    request = tokenize_request("p", None, "demo", True, options)
    assert as_dict(request) == {
        "model": "demo",
        "prompt": "p",
        "return_token_strs": True,
        "prompt_options": PROMPT,
    }
    wrong: Any = {"temperature": 1.0}
    with pytest.raises(TypeError, match="'temperature'"):
        tokenize_request("p", None, None, False, wrong)


def test_detokenization() -> None:
    assert as_dict(detokenize_request([1, 2], True, None)) == {
        "token_ids": [1, 2],
        "skip_special_tokens": True,
    }
    with pytest.raises(InvalidRequestError, match=r"^token_ids: "):
        detokenize_request([-1], False, None)


def test_every_field_of_the_request_can_be_asked_for() -> None:
    sampling = {field.name for field in inference_pb2.SamplingOptions.DESCRIPTOR.fields}
    prompt = {field.name for field in inference_pb2.PromptOptions.DESCRIPTOR.fields}
    request = {field.name for field in inference_pb2.GenerateRequest.DESCRIPTOR.fields}
    chat = {field.name for field in inference_pb2.Chat.DESCRIPTOR.fields} - {"messages"}
    outputs = {field.name for field in inference_pb2.StructuredOutputs.DESCRIPTOR.fields}
    parts = {"prompt", "chat", "token_ids", "sampling", "prompt_options", "structured_outputs"}
    expected = sampling | prompt | chat | outputs | (request - parts) | {"timeout"}
    assert get_type_hints(GenerateOptions).keys() == expected


@pytest.mark.parametrize("wrong", ["ngram", {"methods": "ngram"}, {"num_speculative_tokens": -1}])
def test_speculation_that_is_none(wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^speculation: "):
        generate_request("p", None, None, {"speculation": wrong})
    assert as_dict(generate_request("p", None, None, {"speculation": None})) == {"prompt": "p"}


def test_one_stop_string_is_not_taken_apart() -> None:
    assert generate_request("p", None, None, {"stop": "end"}).sampling.stop == ["end"]


def test_messages_as_objects_and_as_mappings() -> None:
    messages: list[Message | dict[str, str]] = [
        Message("system", "be brief"),
        {"role": "user", "content": "hi"},
    ]
    expected = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert as_dict(generate_request(None, messages, None, {}))["chat"]["messages"] == expected
    assert as_dict(tokenize_request(None, messages, "demo", False, {})) == {
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
        tokenize_request(None, None, None, False, {})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 2**32),
        ("top_k", 1.5),
        ("logit_bias", {-1: 1.0}),
        ("chat_template_kwargs", 5),
        ("chat_template_kwargs", {"a": object()}),
        ("truncate_prompt_tokens", 2**31),
        ("priority", "high"),
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
    "messages", ["hi", ["hi"], [{"role": "user"}], [{"role": "user", "content": "x", "nome": "y"}]]
)
def test_messages_of_another_form(messages: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\[0\] needs role and content"):
        generate_request(None, messages, None, {})


def test_a_misspelt_option_is_a_type_error() -> None:
    options: Any = {"temprature": 1.0}
    with pytest.raises(TypeError, match="'temprature'"):
        generate_request("p", None, None, options)
