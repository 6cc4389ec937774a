"""Everything a client can do wrong, and what it is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from router.errors import MAX_MESSAGE, MAX_PARAM
from tests.router.doors import HELLO, MAX_BODY_BYTES, MAX_MODEL_LEN, MODEL, Doors, open_doors
from tests.support.scripted_dispatcher import ScriptedDispatcher
from tests.support.tiny_tokenizer import VOCAB_SIZE

# One server for all: no test here changes it.
pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def doors(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Doors]:
    folder = tmp_path_factory.mktemp("model")
    async with open_doors(folder, ScriptedDispatcher(HELLO)) as opened:
        yield opened


def chat(**values: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"model": MODEL, "messages": MESSAGES, **values}


def text(**values: Any) -> tuple[str, dict[str, Any]]:
    return TEXT, {"model": MODEL, "prompt": "hi", **values}


def message(**values: Any) -> tuple[str, dict[str, Any]]:
    return chat(messages=[{"role": "user", **values}])


# (request, param, what the message says)
WRONG_VALUES = [
    (text(temperature=-0.1), "temperature", "greater than or equal to 0"),
    (text(temperature=2.1), "temperature", "less than or equal to 2"),
    (text(temperature="1"), "temperature", "number"),
    (text(top_p=0), "top_p", "greater than 0"),
    (text(top_p=1.5), "top_p", "less than or equal to 1"),
    (text(top_k=-2), "top_k", "greater than or equal to -1"),
    (text(top_k=1.5), "top_k", "integer"),
    (text(seed=2**64), "seed", "less than"),
    (text(max_tokens=0), "max_tokens", "greater than or equal to 1"),
    (text(max_tokens=0, echo=True), "max_tokens", "echo with logprobs"),
    (text(max_tokens=-5), "max_tokens", "greater than or equal to 0"),
    (text(max_tokens="5"), "max_tokens", "integer"),
    (text(max_tokens=True), "max_tokens", "integer"),
    (chat(max_completion_tokens=0), "max_tokens", "greater than or equal to 1"),
    (text(min_tokens=-1), "min_tokens", "greater than or equal to 0"),
    (text(min_tokens=9, max_tokens=8), "min_tokens", "more than the 8"),
    (text(n=0), "n", "greater than or equal to 1"),
    (text(min_p=1.1), "min_p", "less than or equal to 1"),
    (text(min_p=-0.1), "min_p", "greater than or equal to 0"),
    (text(typical_p=0), "typical_p", "greater than 0"),
    (text(presence_penalty=2.5), "presence_penalty", "less than or equal to 2"),
    (text(frequency_penalty=-3), "frequency_penalty", "greater than or equal to -2"),
    (text(repetition_penalty=0), "repetition_penalty", "greater than 0"),
    (text(repetition_penalty=101), "repetition_penalty", "less than or equal to 100"),
    (text(logit_bias={"5": 101}), "logit_bias.5", "less than or equal to 100"),
    (text(logit_bias={"a": 1}), "logit_bias", "no token id"),
    (text(logit_bias={"-1": 1}), "logit_bias", "no token id"),
    (text(logit_bias={"9" * 19: 1}), "logit_bias", "out of range"),
    (text(logit_bias={str(VOCAB_SIZE): 1}), "logit_bias", f"0 to {VOCAB_SIZE - 1}"),
    (text(logit_bias=[1]), "logit_bias", "dictionary"),
    (text(bad_words=["a", ""]), "bad_words[1]", "at least 1 character"),
    (text(bad_words=["  "]), "bad_words[0]", "only spaces"),
    (text(bad_words="a"), "bad_words", "list"),
    (text(bad_words=["a" * 257]), "bad_words[0]", "at most 256 characters"),
    (text(allowed_token_ids=[]), "allowed_token_ids", "at least 1 item"),
    (text(allowed_token_ids=[VOCAB_SIZE]), "allowed_token_ids", f"0 to {VOCAB_SIZE - 1}"),
    (text(logprobs=21), "logprobs", "less than or equal to 20"),
    (text(logprobs=True), "logprobs", "integer"),
    (text(prompt_logprobs=-1), "prompt_logprobs", "greater than or equal to 0"),
    (text(best_of=3, n=2, stream=True), "best_of", "best_of cannot be streamed"),
    (text(best_of=1, n=2), "best_of", "fewer than the 2"),
    (text(best_of=17), "best_of", "less than or equal to 16"),
    (text(best_of=True), "best_of", "integer"),
    (text(prompt=["a"] * 65, best_of=2), "prompt", "128"),
    (text(priority=2**31), "priority", "less than or equal to"),
    (text(truncate_prompt_tokens=0), "truncate_prompt_tokens", "truncate_prompt_tokens"),
    (text(truncate_prompt_tokens=-2), "truncate_prompt_tokens", "greater than or equal to -1"),
    (text(add_generation_prompt=True), "add_generation_prompt", "Unknown parameter"),
    (chat(top_logprobs=3), "top_logprobs", "top_logprobs needs logprobs"),
    (chat(logprobs=True, top_logprobs=21), "top_logprobs", "less than or equal to 20"),
    (chat(logprobs=3), "logprobs", "boolean"),
    (chat(add_generation_prompt=True, continue_final_message=True), "continue_final_message", "excludes"),
    (chat(chat_template_kwargs={"messages": []}), "messages", "must not set messages"),
    (chat(chat_template_kwargs={"eos_token": ""}), "messages", "must not set eos_token"),
    (chat(bad_words=["a"] * 257), "bad_words", "at most 256"),
    (text(metadata="a"), "metadata", "dictionary"),
    (text(n=17), "n", "less than or equal to 16"),
    (text(prompt=["a"] * 65, n=2), "prompt", "128"),
    (text(stop=""), "stop[0]", "at least 1 character"),
    (text(stop=["a", ""]), "stop[1]", "at least 1 character"),
    (text(stop=["a"] * 17), "stop", "at most 16"),
    (text(stop=5), "stop", "list"),
    (text(stop="a" * 1025), "stop[0]", "at most 1024 characters"),
    (text(stop_token_ids=[VOCAB_SIZE]), "stop_token_ids", f"0 to {VOCAB_SIZE - 1}"),
    (text(stop_token_ids=["a"]), "stop_token_ids[0]", "integer"),
    (text(ignore_eos=1), "ignore_eos", "boolean"),
    (text(stream="yes"), "stream", "boolean"),
    (text(speculation="ngram"), "speculation", "should be an object."),
    (text(speculation={"method": "ngram", "frob": 1}), "speculation.frob", "Unknown"),
    (text(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage", "boolean"),
    (text(stream=True, stream_options={"frob": True}), "stream_options.frob", "not supported"),
    (text(timeout=0), "timeout", "greater than 0"),
    (text(timeout=1e9), "timeout", "less than or equal to"),
    (text(cache_salt=7), "cache_salt", "string"),
    (text(cache_salt="a" * 300), "cache_salt", "256"),
    (text(prompt=""), "prompt", "empty"),
    (text(prompt=[]), "prompt", "empty"),
    (text(prompt=["a", ""]), "prompt[1]", "empty"),
    (text(prompt=[[1], []]), "prompt[1]", "empty"),
    (text(prompt=5), "prompt", "must be a string"),
    (text(prompt=None), "prompt", "must be a string"),
    (text(prompt=["a", 1]), "prompt", "mixes"),
    (text(prompt=[True]), "prompt", "mixes"),
    (text(prompt=[VOCAB_SIZE]), "prompt", f"0 to {VOCAB_SIZE - 1}"),
    (text(prompt=[[1], [-1]]), "prompt[1]", "out of range"),
    (text(prompt="a" * MAX_MODEL_LEN), "prompt", f"{MAX_MODEL_LEN} tokens"),
    (text(prompt="a" * 1000), "prompt", f"1000 tokens; this model's context length is {MAX_MODEL_LEN}"),
    (text(prompt=[10**40]), "prompt", "A token id is out of range"),
    (text(max_tokens=10**40), "max_tokens", "too large a number"),
    (text(max_tokens=MAX_MODEL_LEN), "max_tokens", f"leave {MAX_MODEL_LEN - 2} of this"),
    (chat(messages=[]), "messages", "at least 1 item"),
    (chat(messages="hi"), "messages", "list"),
    (chat(messages=["hi"]), "messages[0]", "should be an object."),
    (message(), "messages[0].content", "Missing"),
    (message(content=None), "messages[0].content", "string or a list"),
    (message(content=["hi"]), "messages[0].content", "part 0"),
    (message(content=[{"type": "image_url", "image_url": {}}]), "messages[0].content", "'text'"),
    (message(content=[{"type": "text"}]), "messages[0].content", "lacks"),
    (message(content="hi", tool_calls=[{"id": "1"}]), "messages[0].tool_calls[0].type", "Missing"),
    (message(content="hi", frob=1), "messages[0].frob", "Unknown parameter"),
    (chat(messages=[{"role": "", "content": "a"}]), "messages[0].role", "at least 1 character"),
    (chat(messages=[{"content": "a"}]), "messages[0].role", "Missing"),
    (text(frobnicate=1), "frobnicate", "Unknown parameter"),
    (chat(prompt="hi"), "prompt", "Unknown parameter"),
    ((TEXT, {"model": MODEL}), "prompt", "Missing"),
    ((TEXT, {"prompt": "hi"}), "model", "Missing"),
    ((TEXT, {"model": "", "prompt": "hi"}), "model", "at least 1 character"),
]

NOT_BUILT: list[tuple[tuple[str, dict[str, Any]], str]] = [
    (text(suffix="x"), "suffix"),
    (text(use_beam_search=True), "use_beam_search"),
    (chat(functions=[{"name": "f"}]), "functions"),
    (chat(modalities=["text", "audio"]), "modalities"),
    (chat(store=True), "store"),
    (chat(chat_template="{{ 1 }}"), "chat_template"),
    (text(vllm_xargs={"a": 1}), "vllm_xargs"),
    (chat(prompt_cache_retention="24h"), "prompt_cache_retention"),
]

NEUTRAL = [
    text(
        presence_penalty=0, frequency_penalty=0.0, repetition_penalty=1, min_p=0, logit_bias={},
        logprobs=None, echo=False, best_of=1, suffix=None, use_beam_search=False, stop=None, user="u",
        skip_special_tokens=True, metadata={"a": 1}, typical_p=1, priority=0,
        max_tokens=None, temperature=None, stream=False, stream_options=None,
        seed=-1, top_k=-1, n=None, logits_processors=None, kv_transfer_params=None, vllm_xargs={},
        guided_decoding_backend=None, guided_whitespace_pattern=None, mm_processor_kwargs=None,
        prompt_cache_retention=None,
    ),
    text(best_of=2, n=2),
    text(stream=True, stream_options={"include_usage": False, "include_obfuscation": False, "frob": None}),
    chat(
        presence_penalty=0, logprobs=False, top_logprobs=0, response_format={"type": "text"}, tools=[],
        tool_choice="none", parallel_tool_calls=True, functions=None, modalities=["text"], store=False,
        metadata={}, service_tier="auto", reasoning_effort=None, logit_bias=None, safety_identifier="s",
        prompt_cache_key="k", max_tokens=4, max_completion_tokens=4,
    ),
    message(content=[{"type": "text", "text": "a"}], name="n", tool_calls=None, refusal=None, annotations=[]),
]  # fmt: skip


async def refused(doors: Doors, path: str, **request: Any) -> dict[str, Any]:
    """The error of a request that must not reach the dispatcher."""
    before = len(doors.dispatcher.generations)
    response = await doors.client.post(path, **request)
    assert 400 <= response.status_code < 500, response.text
    assert len(doors.dispatcher.generations) == before
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["type"] == "invalid_request_error"
    return {"status": response.status_code, **body["error"]}


@pytest.mark.parametrize(("request_", "param", "says"), WRONG_VALUES)
async def test_wrong_values(doors: Doors, request_: Any, param: str, says: str) -> None:
    error = await refused(doors, request_[0], json=request_[1])
    assert (error["status"], error["param"]) == (400, param)
    assert says in error["message"]
    assert len(error["message"]) <= MAX_MESSAGE


@pytest.mark.parametrize(("request_", "param"), NOT_BUILT)
async def test_what_is_not_built_is_refused_by_name(doors: Doors, request_: Any, param: str) -> None:
    error = await refused(doors, request_[0], json=request_[1])
    assert (error["status"], error["param"], error["code"]) == (400, param, "unsupported_parameter")
    assert param in error["message"]


@pytest.mark.parametrize("request_", NEUTRAL)
async def test_neutral_values_are_accepted(doors: Doors, request_: Any) -> None:
    response = await doors.client.post(request_[0], json=request_[1])
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"model": "a",}', "not valid JSON"),
        (b'{"model": "org/tiny", "prompt": "\xff"}', "not valid JSON"),
        (b'{"model": "org/tiny", "prompt": "\\ud800"}', "not valid JSON"),
        (b'{"model": "org/tiny", "prompt": "a", "temperature": NaN}', "not valid JSON"),
        (b"[" * 5000, "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"hi"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
    ],
)
async def test_malformed_bodies(doors: Doors, body: bytes, says: str) -> None:
    for path in (CHAT, TEXT):
        error = await refused(doors, path, content=body)
        assert (error["status"], error["code"]) == (400, "invalid_json")
        assert says in error["message"]


async def test_integers_of_any_size_are_no_crash(doors: Doors) -> None:
    for field in ("prompt", "seed", "max_tokens", "min_tokens", "n", "stop_token_ids", "priority"):
        huge = [10**3000] if field in ("prompt", "stop_token_ids") else 10**3000
        body = json.dumps({"model": MODEL, "prompt": "a", field: huge}).encode()
        error = await refused(doors, TEXT, content=body)
        assert error["status"] == 400
        assert len(error["message"]) <= MAX_MESSAGE


async def test_what_a_client_sent_comes_back_bounded(doors: Doors) -> None:
    long = "x" * 10_000
    for body in (text(**{long: 1})[1], {**text()[1], "model": long}, message(**{long: 1, "content": "a"})[1]):
        path = CHAT if "messages" in body else TEXT
        error = await refused(doors, path, json=body)
        assert len(error["message"]) <= MAX_MESSAGE
        assert len(error["param"] or "") <= MAX_PARAM
    response = await doors.client.get(f"/v1/{long}")
    assert len(response.text) < MAX_MESSAGE


async def test_differing_limits(doors: Doors) -> None:
    error = await refused(doors, CHAT, json=chat(max_tokens=3, max_completion_tokens=4)[1])
    assert "differ" in error["message"]


async def test_stream_options_need_a_stream(doors: Doors) -> None:
    error = await refused(doors, TEXT, json=text(stream_options={"include_usage": True})[1])
    assert "stream" in error["message"]


async def test_unknown_model(doors: Doors) -> None:
    for path, body in (chat(model="gpt-4"), text(model="gpt-4")):
        error = await refused(doors, path, json=body)
        assert (error["status"], error["code"], error["param"]) == (404, "model_not_found", "model")
        assert "gpt-4" in error["message"]
        assert MODEL in error["message"]


@pytest.mark.parametrize("header", ["0", "-1", "soon", "nan", "inf", "1e9"])
async def test_bad_timeout_header(doors: Doors, header: str) -> None:
    error = await refused(doors, TEXT, json=text()[1], headers={"x-request-timeout": header})
    assert (error["status"], error["param"]) == (400, "x-request-timeout")


async def test_large_body_with_a_length(doors: Doors) -> None:
    error = await refused(doors, TEXT, content=b"x" * (10 << 20))
    assert (error["status"], error["code"]) == (413, "body_too_large")
    assert str(MAX_BODY_BYTES) in error["message"]


async def test_large_body_without_a_length(doors: Doors) -> None:
    sent = 0

    async def chunks() -> Any:
        nonlocal sent
        for _ in range(160):
            sent += 64 << 10
            yield b"x" * (64 << 10)

    error = await refused(doors, TEXT, content=chunks())
    assert error["status"] == 413


async def test_the_largest_body_is_accepted(doors: Doors) -> None:
    body = json.dumps(text(user="")[1]).encode()
    padded = json.dumps(text(user="u" * (MAX_BODY_BYTES - len(body)))[1]).encode()
    assert len(padded) == MAX_BODY_BYTES
    assert (await doors.client.post(TEXT, content=padded)).status_code == 200
    response = await doors.client.post(TEXT, content=padded + b" ")
    assert response.status_code == 413


async def test_unknown_paths_and_methods(doors: Doors) -> None:
    response = await doors.client.get("/v1/nothing")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
    response = await doors.client.get(CHAT)
    assert (response.status_code, response.json()["error"]["code"]) == (405, "invalid_method")
    assert response.headers["allow"] == "POST"
