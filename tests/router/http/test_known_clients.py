"""Bodies as widely used clients send them, field by field, and what these clients read of the answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.router.doors import MODEL, Doors
from tests.support.http_calls import post, post_stream
from tests.support.scripted_dispatcher import Script, TokenLogprobs, logprobs_at, says

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]

CHATS: dict[str, dict[str, Any]] = {
    "openai-python, all that it names, at rest": {
        "frequency_penalty": 0, "logit_bias": {}, "logprobs": False, "max_completion_tokens": 8,
        "metadata": {},
        "modalities": ["text"], "n": 1, "parallel_tool_calls": True, "presence_penalty": 0, "seed": 1,
        "service_tier": "auto", "stop": None, "store": False, "temperature": 1, "tool_choice": "none",
        "tools": [],
        "top_logprobs": None, "top_p": 1, "user": "u", "response_format": {"type": "text"},
        "prompt_cache_key": "k", "safety_identifier": "s", "verbosity": "medium",
    },
    "langchain-openai": {"stream": False, "temperature": 0.7, "n": 1, "max_completion_tokens": 8},
    "litellm": {"temperature": 0.2, "max_tokens": 8, "user": "u", "metadata": {"trace": "t"}},
    "llm": {"stream": False, "max_tokens": 8, "temperature": 0.5, "top_p": 0.9, "logit_bias": {"5": 1}},
    "inspect-ai": {"max_tokens": 8, "seed": 1, "logprobs": True, "top_logprobs": 2, "stop": ["x"], "n": 2},
    "vLLM's own client": {
        "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "length_penalty": 1.0, "ignore_eos": True,
        "min_tokens": 1, "skip_special_tokens": True, "spaces_between_special_tokens": True,
        "truncate_prompt_tokens": None, "add_generation_prompt": True, "add_special_tokens": False,
        "include_stop_str_in_output": False, "use_beam_search": False, "max_tokens": 8, "best_of": 1,
        "chat_template": None, "chat_template_kwargs": {"enable_thinking": False}, "priority": 0,
    },
}  # fmt: skip

STREAMS: dict[str, dict[str, Any]] = {
    "langchain-openai": {"stream_options": {"include_usage": True}, "temperature": 0.7},
    "llm": {"stream_options": {"include_usage": True}},
    "aiperf": {
        "stream_options": {"include_usage": True}, "max_completion_tokens": 8, "min_tokens": 8,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "u"}],
    },
    "guidellm": {
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "max_completion_tokens": 8,
        "max_tokens": 8, "stop": None, "ignore_eos": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CHATS)
async def test_chats(doors: Doors, name: str) -> None:
    body = await post(doors.client, CHAT, {"model": MODEL, "messages": MESSAGES, **CHATS[name]})
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert body["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("name", STREAMS)
async def test_streams(doors: Doors, name: str) -> None:
    chunks = await post_stream(doors.client, CHAT, {"model": MODEL, "messages": MESSAGES, **STREAMS[name]})
    *_, last = chunks
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == STREAMS[name].get("max_completion_tokens", 14)


@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_lm_eval_scores_batches_of_token_ids(doors: Doors, max_tokens: int) -> None:
    """The sum over the continuation, and whether each of its tokens is the likeliest in its place.

    With max_tokens 1 the harness drops the generated token, whatever it is; others ask for none.
    """
    likely = TokenLogprobs(-0.25, 1, ((ord("d"), -0.25),))
    doors.dispatcher.script = Script(says("", end=257))

    def at(token_id: int, num_top: int) -> TokenLogprobs:
        return likely if token_id == ord("d") else logprobs_at(token_id, num_top)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.scripted_dispatcher.logprobs_at", at)
        body = await post(
            doors.client,
            TEXT,
            {
                "model": MODEL, "prompt": [list(b"abcdd"), list(b"abc")], "temperature": 0,
                "max_tokens": max_tokens, "logprobs": 1, "seed": 1234, "echo": True,
            },
        )  # fmt: skip
    scores = []
    for choice, context in zip(body["choices"], (3, 1), strict=True):
        logprobs = choice["logprobs"]
        stop = -1 if max_tokens else None
        own = logprobs["token_logprobs"][context:stop]
        top = logprobs["top_logprobs"][context:stop]
        greedy = all(value == max(likeliest.values()) for value, likeliest in zip(own, top, strict=True))
        scores.append((sum(own), greedy))
    expected = sum(logprobs_at(token, 1).logprob for token in b"bc")
    assert scores == [(-0.5, True), (pytest.approx(expected), False)]


async def test_lm_eval_generates(doors: Doors) -> None:
    asked = {
        "model": MODEL, "prompt": [list(b"abc")], "max_tokens": 8, "temperature": 0, "seed": 1234,
        "stop": ["\n\n", "</s>"],
    }  # fmt: skip
    body = await post(doors.client, TEXT, asked)
    assert body["choices"][0]["text"] == "Hello, w"


async def test_a_scorer_that_reads_the_echo_alone(doors: Doors) -> None:
    asked = {
        "model": MODEL,
        "prompt": "abc",
        "max_tokens": 0,
        "echo": True,
        "logprobs": 5,
        "temperature": 0.0,
    }
    logprobs = (await post(doors.client, TEXT, asked))["choices"][0]["logprobs"]
    assert [len(values) for values in logprobs.values()] == [3, 3, 3, 3]
