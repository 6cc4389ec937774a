"""Each parameter arrives where it is honoured, at both generating endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from router.generation import ErrorKind, GenerationError, Speculation
from tests.router.doors import MAX_MODEL_LEN, MODEL, Doors
from tests.support.http_calls import post, post_stream
from tests.support.scripted_dispatcher import Script, says
from tests.support.tiny_tokenizer import IM_END

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def body_of(path: str, **values: Any) -> dict[str, Any]:
    asked = {"messages": MESSAGES} if path == CHAT else {"prompt": "hi"}
    return {"model": MODEL, **asked, **values}


def prompt_text(doors: Doors) -> str:
    """The last prompt, its special tokens spelt out."""
    token_ids = doors.dispatcher.generations[-1].request.prompt_token_ids
    return doors.serving.model.tokenizer.decode(token_ids, skip_special_tokens=False)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("name", "value", "resolved"),
    [
        ("temperature", 0.5, 0.5),
        ("top_p", 0.25, 0.25),
        ("top_k", 7, 7),
        ("min_p", 0.125, 0.125),
        ("typical_p", 0.5, 0.5),
        ("presence_penalty", -2, -2.0),
        ("frequency_penalty", 0.5, 0.5),
        ("repetition_penalty", 1.5, 1.5),
        ("logit_bias", {"7": -100, "9": 0.5}, ((7, -100.0), (9, 0.5))),
        ("bad_words", ["ab", " c"], ((97, 98), (99,))),
        ("allowed_token_ids", [3, 4], (3, 4)),
        ("seed", -1, 2**64 - 1),
        ("max_tokens", 5, 5),
        ("min_tokens", 2, 2),
        ("stop_token_ids", [5, 6], (5, 6)),
        ("ignore_eos", True, True),
        ("prompt_logprobs", 3, 3),
    ],
)
async def test_sampling(doors: Doors, path: str, name: str, value: Any, resolved: Any) -> None:
    await post(doors.client, path, body_of(path, **{name: value}))
    assert getattr(doors.dispatcher.generations[-1].request.sampling, name) == resolved


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_what_is_not_asked_is_off(doors: Doors, path: str) -> None:
    await post(doors.client, path, body_of(path))
    request = doors.dispatcher.generations[-1].request
    sampling = request.sampling
    assert (sampling.min_p, sampling.typical_p, sampling.repetition_penalty) == (0.0, 1.0, 1.0)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.0, 0.0)
    assert (sampling.logit_bias, sampling.bad_words, sampling.allowed_token_ids) == ((), (), ())
    assert (sampling.logprobs, sampling.prompt_logprobs, sampling.grammar) == (None, None, None)
    assert (request.priority, request.cache_salt) == (0, "")


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_priority_and_salt(doors: Doors, path: str) -> None:
    await post(doors.client, path, body_of(path, priority=-5, cache_salt="s"))
    request = doors.dispatcher.generations[-1].request
    assert (request.priority, request.cache_salt) == (-5, "s")


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("asked", "resolved"),
    [
        ({"method": "ngram", "num_speculative_tokens": 3}, Speculation("ngram", 3)),
        ({"method": "none", "num_speculative_tokens": None}, Speculation("none", None)),
        ({"num_speculative_tokens": 1}, Speculation("", 1)),
        ({}, Speculation("", None)),
        (None, None),
    ],
)
async def test_speculation(doors: Doors, path: str, asked: Any, resolved: Speculation | None) -> None:
    await post(doors.client, path, body_of(path, speculation=asked))
    assert doors.dispatcher.generations[-1].request.speculation == resolved


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_seed_is_the_clients_own_where_it_is_given(doors: Doors, path: str) -> None:
    for asked, own in (({"seed": 0}, True), ({}, False), ({"seed": None}, False)):
        await post(doors.client, path, body_of(path, **asked))
        assert doors.dispatcher.generations[-1].request.sampling.own_seed is own


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("step", [1, 4, 100])
async def test_the_stop_string_can_be_part_of_the_answer(doors: Doors, path: str, step: int) -> None:
    doors.dispatcher.script = Script(says("one. two", step=step), hang=step < 100)
    values = {"stop": [". "], "include_stop_str_in_output": True}
    body = await post(doors.client, path, body_of(path, **values))
    choice = body["choices"][0]
    assert (choice["text"] if path == TEXT else choice["message"]["content"]) == "one. "
    assert body["usage"]["completion_tokens"] == 5


async def test_the_stop_token_can_be_part_of_the_answer(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("ab", end=ord("!")))
    asked = body_of(TEXT, stop_token_ids=[ord("!")])
    assert (await post(doors.client, TEXT, asked))["choices"][0]["text"] == "ab"
    body = await post(doors.client, TEXT, {**asked, "include_stop_str_in_output": True})
    assert body["choices"][0]["text"] == "ab!"


@pytest.mark.parametrize(
    ("skip", "include", "text"),
    [(True, True, "ab"), (False, False, "a<|im_start|>b"), (False, True, "a<|im_start|>b<|im_end|>")],
)
async def test_special_tokens(doors: Doors, skip: bool, include: bool, text: str) -> None:
    doors.dispatcher.script = Script(((97, 256, 98, IM_END),))
    values = {"skip_special_tokens": skip, "include_stop_str_in_output": include}
    body = await post(doors.client, TEXT, body_of(TEXT, spaces_between_special_tokens=False, **values))
    assert body["choices"][0]["text"] == text


@pytest.mark.parametrize(
    ("truncate", "max_tokens", "kept"),
    [(3, 4, "xyz"), (100, 4, "a" * 97 + "xyz"), (-1, 4, "a" * (MAX_MODEL_LEN - 7) + "xyz")],
)
async def test_truncated_prompts(doors: Doors, truncate: int, max_tokens: int, kept: str) -> None:
    values = {"truncate_prompt_tokens": truncate, "max_tokens": max_tokens, "prompt": "a" * 600 + "xyz"}
    body = await post(doors.client, TEXT, body_of(TEXT, echo=True, **values))
    assert prompt_text(doors) == kept
    assert body["usage"]["prompt_tokens"] == len(kept)
    # What was cut off is no part of the prompt.
    assert body["choices"][0]["text"] == kept + "Hell"


async def test_a_truncation_that_leaves_no_room(doors: Doors) -> None:
    values = {"truncate_prompt_tokens": MAX_MODEL_LEN, "prompt": "a" * 600}
    response = await doors.client.post(TEXT, json=body_of(TEXT, **values))
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_ends_of_chats(doors: Doors) -> None:
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So be "}]
    begun = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nSo be "
    for values, expected in (
        ({}, f"{begun}<|im_end|>\n<|im_start|>assistant\n"),
        ({"add_generation_prompt": False}, f"{begun}<|im_end|>\n"),
        ({"continue_final_message": True}, begun),
        ({"continue_final_message": True, "add_generation_prompt": False}, begun),
    ):
        await post(doors.client, CHAT, {"model": MODEL, "messages": said, **values})
        assert prompt_text(doors) == expected


async def test_echo(doors: Doors) -> None:
    asked = body_of(TEXT, prompt=["ab", "c<|im_start|>"], n=2, echo=True)
    body = await post(doors.client, TEXT, asked)
    texts = [choice["text"] for choice in body["choices"]]
    assert texts == ["abHello, wörld"] * 2 + ["c<|im_start|>Hello, wörld"] * 2
    chunks = await post_stream(doors.client, TEXT, asked)
    streamed = ["", "", "", ""]
    for chunk in chunks:
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert streamed == texts


async def test_echo_of_token_ids(doors: Doors) -> None:
    body = await post(doors.client, TEXT, body_of(TEXT, prompt=[[97, 256, 98]], echo=True))
    assert body["choices"][0]["text"] == "abHello, wörld"
    values = {"prompt": [[97, 256, 98]], "echo": True, "skip_special_tokens": False}
    body = await post(doors.client, TEXT, body_of(TEXT, **values))
    assert body["choices"][0]["text"] == "a<|im_start|>bHello, wörld"


async def test_an_echo_does_not_hide_an_error(doors: Doors) -> None:
    doors.dispatcher.script = Script(error=GenerationError(ErrorKind.UNAVAILABLE, "no worker"))
    response = await doors.client.post(TEXT, json=body_of(TEXT, echo=True, stream=True))
    assert response.status_code == 503


async def test_best_of_returns_the_likeliest(doors: Doors) -> None:
    """Scripted tokens are the less likely the higher their ids."""
    words = ["zz", "aa", "mmm", "bb"]
    doors.dispatcher.script = lambda request: Script(says(words[request.sampling.choice], end=None))
    body = await post(doors.client, TEXT, body_of(TEXT, prompt=["x", "y"], n=2, best_of=4))
    assert [choice["text"] for choice in body["choices"]] == ["aa", "bb", "aa", "bb"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in body["choices"])
    # Every token that was generated is counted, as OpenAI does.
    assert body["usage"]["completion_tokens"] == 2 * sum(map(len, words))
    assert body["usage"]["prompt_tokens"] == 2
    assert {generation.request.sampling.logprobs for generation in doors.dispatcher.generations} == {0}
    body = await post(doors.client, TEXT, body_of(TEXT, best_of=4, logprobs=1))
    assert body["choices"][0]["logprobs"]["tokens"] == ["a", "a"]


async def test_best_of_as_many_streams(doors: Doors) -> None:
    chunks = await post_stream(doors.client, TEXT, body_of(TEXT, n=2, best_of=2))
    assert {chunk["choices"][0]["index"] for chunk in chunks} == {0, 1}


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_token_ids_are_returned(doors: Doors, path: str) -> None:
    asked = body_of(path, return_token_ids=True)
    body = await post(doors.client, path, asked)
    (choice,) = body["choices"]
    answer = [*"Hello, wörld".encode(), IM_END]
    assert choice["token_ids"] == answer
    prompt = list(doors.dispatcher.generations[-1].request.prompt_token_ids)
    assert (body if path == CHAT else choice)["prompt_token_ids"] == prompt
    chunks = await post_stream(doors.client, path, asked)
    streamed = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])]
    assert streamed == answer
    told = [chunk if path == CHAT else chunk["choices"][0] for chunk in chunks]
    assert [each.get("prompt_token_ids") for each in told] == [prompt] + [None] * (len(chunks) - 1)


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_usage_of_choices_that_differ(doors: Doors, path: str) -> None:
    """Streamed or not, at the end or as it goes, the counts are the same."""
    doors.dispatcher.script = lambda request: Script(
        says("abcdef"[: 2 + request.sampling.choice]), cached_tokens=2 - request.sampling.choice
    )
    asked = body_of(path, n=2)
    usage = (await post(doors.client, path, asked))["usage"]
    prompt_tokens = len(doors.dispatcher.generations[0].request.prompt_token_ids)
    assert usage["completion_tokens"] == 3 + 4
    assert usage["total_tokens"] == prompt_tokens + 7
    assert usage["prompt_tokens_details"] == {"cached_tokens": 1}
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await post_stream(doors.client, path, {**asked, "stream_options": options})
    assert chunks[-1]["usage"] == usage
    assert chunks[-2]["usage"]["completion_tokens"] == 7
