"""Answers, streamed and whole, as HTTP bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.generation import ErrorKind, GenerationError
from tests.router.doors import MAX_MODEL_LEN, MODEL, Doors
from tests.support.scripted_dispatcher import Script, says
from tests.support.tiny_tokenizer import IM_END

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
DETAILS = {"reasoning_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
RENDERED = b"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def chat_body(**values: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": MESSAGES, **values}


def text_body(**values: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "hi", **values}


async def stream(doors: Doors, path: str, body: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """All chunks, and whether [DONE] came last."""
    async with doors.client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        raw = b"".join([part async for part in response.aiter_raw()])
    *events, rest = raw.decode().split("\n\n")
    assert rest == ""
    assert all(event.startswith("data: ") for event in events)
    data = [event.removeprefix("data: ") for event in events]
    done = data[-1] == "[DONE]"
    return [json.loads(item) for item in (data[:-1] if done else data)], done


async def whole(doors: Doors, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await doors.client.post(path, json=body)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


async def test_chat(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("Hello, wörld"), cached_tokens=4)
    body = await whole(doors, CHAT, chat_body())
    assert body["object"] == "chat.completion"
    assert body["model"] == MODEL
    assert body["id"].startswith("chatcmpl-")
    assert body["system_fingerprint"].startswith("fp_")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, wörld", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt_tokens = len(doors.dispatcher.generations[0].request.prompt_token_ids)
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 14,
        "total_tokens": prompt_tokens + 14,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": DETAILS,
    }
    sent = doors.dispatcher.generations[0].request.prompt_token_ids
    specials = {256: b"<|im_start|>", 257: b"<|im_end|>"}
    assert b"".join(specials.get(token) or bytes([token]) for token in sent) == RENDERED


async def test_content_parts_are_joined_by_line_ends(doors: Doors) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await whole(doors, CHAT, {"model": MODEL, "messages": [{"role": "user", "content": parts}]})
    sent = bytes(token for token in doors.dispatcher.generations[0].request.prompt_token_ids if token < 256)
    assert b"user\none\ntwo" in sent


async def test_completion(doors: Doors) -> None:
    body = await whole(doors, TEXT, text_body())
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    choice = {"index": 0, "text": "Hello, wörld", "logprobs": None, "finish_reason": "stop"}
    assert body["choices"] == [choice]
    assert body["usage"]["prompt_tokens"] == 2
    request = doors.dispatcher.generations[0].request
    assert request.prompt_token_ids == (104, 105)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert (sampling.min_tokens, sampling.stop_token_ids, sampling.ignore_eos) == (0, (), False)
    assert sampling.max_tokens == MAX_MODEL_LEN - 2
    assert request.deadline is None


async def test_every_sampling_option_arrives(doors: Doors) -> None:
    options = {
        "temperature": 0.5, "top_p": 0.25, "top_k": 7, "seed": -1, "max_tokens": 9, "min_tokens": 2,
        "stop_token_ids": [5, 6], "ignore_eos": True, "cache_salt": "tenant",
    }  # fmt: skip
    await whole(doors, TEXT, text_body(**options))
    request = doors.dispatcher.generations[0].request
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.25, 7)
    assert (sampling.seed, sampling.max_tokens, sampling.min_tokens) == (2**64 - 1, 9, 2)
    assert (sampling.stop_token_ids, sampling.ignore_eos) == ((5, 6), True)
    assert request.cache_salt == "tenant"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_both_names_of_the_limit(doors: Doors, name: str) -> None:
    body = await whole(doors, CHAT, chat_body(**{name: 3}))
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["message"]["content"] == "Hel"
    assert body["usage"]["completion_tokens"] == 3


async def test_a_drawn_seed_differs_from_request_to_request(doors: Doors) -> None:
    for _ in range(4):
        await whole(doors, TEXT, text_body())
    assert len({generation.request.sampling.seed for generation in doors.dispatcher.generations}) == 4


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("ab", [(97, 98)]),
        (["ab", "c"], [(97, 98), (99,)]),
        ([97, 98], [(97, 98)]),
        ([[97, 98], [99]], [(97, 98), (99,)]),
    ],
)
async def test_forms_of_prompts(doors: Doors, prompt: Any, prompts: list[tuple[int, ...]]) -> None:
    doors.dispatcher.script = lambda request: Script(says(bytes(request.prompt_token_ids).decode()))
    body = await whole(doors, TEXT, text_body(prompt=prompt))
    assert [generation.request.prompt_token_ids for generation in doors.dispatcher.generations] == prompts
    assert [choice["text"] for choice in body["choices"]] == [bytes(ids).decode() for ids in prompts]
    assert body["usage"]["prompt_tokens"] == sum(map(len, prompts))


async def test_choices_of_several_prompts(doors: Doors) -> None:
    """Choice c of prompt p stands at p * n + c; prompts count once, and cached means: for all choices."""

    def script(request: Any) -> Script:
        text = f"{chr(request.prompt_token_ids[0])}{request.sampling.choice}"
        return Script(says(text), cached_tokens=request.sampling.choice)

    doors.dispatcher.script = script
    body = await whole(doors, TEXT, text_body(prompt=["xx", "yyy"], n=3))
    assert [choice["text"] for choice in body["choices"]] == ["x0", "x1", "x2", "y0", "y1", "y2"]
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert body["usage"]["prompt_tokens"] == 5
    assert body["usage"]["completion_tokens"] == 18
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    requests = [generation.request for generation in doors.dispatcher.generations]
    assert len({request.request_id for request in requests}) == 6
    assert len({request.sampling.seed for request in requests}) == 1


async def test_chat_stream(doors: Doors) -> None:
    chunks, done = await stream(doors, CHAT, chat_body())
    assert done
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": "H"}
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello, wörld"
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    # The two bytes of ö come as one chunk.
    assert len(chunks) == len("Hello, wörld") + 1


async def test_completion_stream_with_usage(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("abc"), cached_tokens=1)
    chunks, done = await stream(doors, TEXT, text_body(stream_options={"include_usage": True}))
    assert done
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "abc"
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 4,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": DETAILS,
    }


async def test_usage_so_far(doors: Doors) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks, _ = await stream(doors, TEXT, text_body(stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == 14


async def test_stream_of_choices(doors: Doors) -> None:
    doors.dispatcher.script = lambda request: Script(says(f"choice {request.sampling.choice}"))
    chunks, _ = await stream(doors, CHAT, chat_body(n=3))
    texts = ["", "", ""]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == ["choice 0", "choice 1", "choice 2"]


@pytest.mark.parametrize("step", [1, 3, 100])
@pytest.mark.parametrize("stop", ["wör", ["xyz", "wör"]])
async def test_stop_string(doors: Doors, stop: Any, step: int) -> None:
    """Tokens behind the stop string are neither shown nor counted, however they came."""
    doors.dispatcher.script = Script(says("Hello, wörld", step=step), hang=step < 100)
    body = await whole(doors, TEXT, text_body(stop=stop))
    assert body["choices"][0]["text"] == "Hello, "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len("Hello, wör".encode())
    assert doors.dispatcher.states == ["finished"]


async def test_stop_string_in_a_stream_is_never_shown(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("one<b> two</b> three"))
    chunks, done = await stream(doors, TEXT, text_body(stop="</b>"))
    assert done
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == "one<b> two"
    assert not any("</" in text for text in texts)


async def test_what_is_held_back_comes_at_the_end(doors: Doors) -> None:
    doors.dispatcher.script = Script((tuple(b"ab</"), tuple("é".encode()[:1])), finish_reason="length")
    chunks, _ = await stream(doors, TEXT, text_body(stop="</b>"))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ab</\ufffd"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_stop_token_has_no_text(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("abc", end=None))
    body = await whole(doors, TEXT, text_body(stop_token_ids=[ord("c")]))
    assert body["choices"][0]["text"] == "ab"
    assert body["usage"]["completion_tokens"] == 3


async def test_stop_strings_wait_for_min_tokens(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("a.b.c.", end=None))
    body = await whole(doors, TEXT, text_body(stop=".", min_tokens=3))
    assert body["choices"][0]["text"] == "a.b"
    assert body["usage"]["completion_tokens"] == 4


async def test_ignored_end_token_does_not_hide_text(doors: Doors) -> None:
    doors.dispatcher.script = Script(((97, IM_END, 98),), finish_reason="length")
    body = await whole(doors, TEXT, text_body(ignore_eos=True))
    assert body["choices"][0]["text"] == "ab"


ERRORS = [
    (ErrorKind.OVERLOADED, 429, "rate_limit_error", "overloaded"),
    (ErrorKind.UNAVAILABLE, 503, "server_error", "unavailable"),
    (ErrorKind.DEADLINE, 504, "timeout_error", "deadline_exceeded"),
    (ErrorKind.INVALID, 400, "invalid_request_error", "invalid_value"),
    (ErrorKind.INTERNAL, 500, "server_error", "internal_error"),
    (ErrorKind.CANCELLED, 503, "server_error", "cancelled"),
]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("kind", "status", "type_", "code"), ERRORS)
async def test_errors_before_the_first_token(
    doors: Doors, kind: ErrorKind, status: int, type_: str, code: str, streaming: bool
) -> None:
    doors.dispatcher.script = Script(error=GenerationError(kind, "the reason", 2.5))
    response = await doors.client.post(CHAT, json=chat_body(stream=streaming))
    assert response.status_code == status
    error = {"message": "the reason", "type": type_, "param": None, "code": code}
    assert response.json() == {"error": error}
    assert response.headers["retry-after"] == "3"


@pytest.mark.parametrize(("kind", "status", "type_", "code"), ERRORS)
async def test_errors_after_the_first_token(
    doors: Doors, kind: ErrorKind, status: int, type_: str, code: str
) -> None:
    doors.dispatcher.script = Script(says("Hel", end=None), error=GenerationError(kind, "the reason"))
    chunks, done = await stream(doors, TEXT, text_body())
    assert not done
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "Hel"
    assert chunks[-1] == {"error": {"message": "the reason", "type": type_, "param": None, "code": code}}


@pytest.mark.parametrize("after", ["", "Hel"])
async def test_an_unforeseen_error_tells_no_secrets(doors: Doors, after: str) -> None:
    doors.dispatcher.script = Script(says(after, end=None), error=RuntimeError("secret"))
    response = await doors.client.post(TEXT, json=text_body())
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    response = await doors.client.post(TEXT, json=text_body(stream=True))
    assert "secret" not in response.text
    assert "internal_error" in response.text


async def test_one_failing_choice_ends_the_others(doors: Doors) -> None:
    def script(request: Any) -> Script:
        if request.sampling.choice == 1:
            return Script(says("a", end=None), error=GenerationError(ErrorKind.UNAVAILABLE, "lost"))
        return Script(says("a", end=None), hang=True)

    doors.dispatcher.script = script
    response = await doors.client.post(TEXT, json=text_body(n=3))
    assert response.status_code == 503
    assert doors.dispatcher.states == ["closed", "failed", "closed"]
    assert doors.serving.active == 0


async def test_request_ids(doors: Doors) -> None:
    response = await doors.client.post(TEXT, json=text_body(), headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    assert response.json()["id"] == "cmpl-mine-1"
    # A client may repeat its id; workers must never see one twice.
    await doors.client.post(TEXT, json=text_body(), headers={"x-request-id": "mine-1"})
    ids = [generation.request.request_id for generation in doors.dispatcher.generations]
    assert len(set(ids)) == 2
    assert all(name.startswith("mine-1:") for name in ids)
    for bad in ("a b", "x" * 129, ""):
        response = await doors.client.post(TEXT, json=text_body(), headers={"x-request-id": bad})
        assert response.headers["x-request-id"] not in ("", bad)


async def test_the_content_type_does_not_matter(doors: Doors) -> None:
    headers = {"content-type": "text/plain"}
    response = await doors.client.post(TEXT, content=json.dumps(text_body()), headers=headers)
    assert response.status_code == 200
