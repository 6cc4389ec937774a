"""The same request gets the same tokens, whichever way it takes through the cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from kvrelay import AsyncClient, Client, Generation
from tests.end_to_end.two_by_two.conftest import MODEL
from tests.support.aggregated import aggregated_tokens
from tests.support.live_cluster import LiveCluster
from tests.support.live_counts import wait_published, wait_told
from tests.support.requests import prompt, work_request

# Around block (16), chunk (16) and step (64) sizes, below and above the limit for local prefill.
LENGTHS = (1, 15, 16, 17, 63, 64, 65, 100, 129, 200, 255, 300, 320, 400, 513, 700)
MAX_TOKENS = 24
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "seed": 1},
    {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "seed": 11},
)


def _request(number: int) -> dict[str, Any]:
    """Greedy and sampled in turn."""
    tokens = prompt(LENGTHS[number], seed=300 + number)
    return {"token_ids": tokens, "max_tokens": MAX_TOKENS, "ignore_eos": True, **SAMPLINGS[number % 2]}


@pytest.fixture(scope="module")
def aggregated(model: Path) -> list[tuple[int, ...]]:
    """One engine, one request after the other."""
    answers: list[tuple[int, ...]] = []
    for number in range(len(LENGTHS)):
        request = _request(number)
        work = work_request(str(number), request.pop("token_ids"), **request)
        answers.append(tuple(aggregated_tokens(model, work)))
    return answers


def test_one_after_the_other_and_again(
    cluster: LiveCluster, client: Client, aggregated: list[tuple[int, ...]]
) -> None:
    for number, answer in enumerate(aggregated):
        request = _request(number)
        first = client.generate(**request, cache_salt="alone")
        assert first.timeline is not None
        wait_published(cluster, request["token_ids"], first.timeline.decode_worker, cache_salt="alone")
        wait_told(cluster)
        again = client.generate(**_request(number), cache_salt="alone")
        assert first.token_ids == answer
        assert again.token_ids == answer
        assert first.usage.cached_tokens == 0
        assert again.timeline is not None
        remote = LENGTHS[number] > 64
        assert first.timeline.transport == ("nixl" if remote else "")
        # All whole blocks; but the last token is computed again, for its logits.
        assert again.usage.cached_tokens == min(LENGTHS[number] // 16 * 16, LENGTHS[number] - 1)
        # Nobody holds a block of fewer than 16 tokens: any worker will do.
        if LENGTHS[number] >= 16:
            assert again.timeline.decode_worker == first.timeline.decode_worker


def test_sixteen_at_once(cluster: LiveCluster, aggregated: list[tuple[int, ...]]) -> None:
    async def ask() -> list[Generation]:
        async with AsyncClient(cluster.state.grpc_address, timeout=120.0) as client:
            calls = [
                client.generate(**_request(number), cache_salt="together") for number in range(len(LENGTHS))
            ]
            return await asyncio.gather(*calls)

    results = asyncio.run(ask())
    assert [result.token_ids for result in results] == aggregated
    for length, result in zip(LENGTHS, results, strict=True):
        assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (length, MAX_TOKENS)


def test_choices_draw_apart_and_the_same_again(cluster: LiveCluster, client: Client) -> None:
    request = {**_request(9), "temperature": 1.0, "seed": 5, "n": 3}
    first = client.generate(**request, cache_salt="choices-1")
    again = client.generate(**request, cache_salt="choices-2")
    assert [choice.token_ids for choice in first.choices] == [choice.token_ids for choice in again.choices]
    assert len({choice.token_ids for choice in first.choices}) == 3
    assert first.usage.completion_tokens == 3 * MAX_TOKENS


def test_the_openai_package_gets_the_same_text(cluster: LiveCluster, client: Client) -> None:
    messages = [{"role": "user", "content": "Say something that is the same at both doors. " * 4}]
    told = client.chat(messages, max_tokens=MAX_TOKENS, temperature=0.7, seed=3)
    with openai.OpenAI(base_url=f"{cluster.state.http_url}/v1", api_key="none", max_retries=0) as http:
        options: dict[str, Any] = {
            "model": MODEL, "messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0.7, "seed": 3,
        }  # fmt: skip
        whole = http.chat.completions.create(**options)
        text, usage = "", None
        for chunk in http.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        ):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            usage = chunk.usage or usage
    assert whole.choices[0].message.content == told.text == text
    assert usage is not None
    assert usage.completion_tokens == told.usage.completion_tokens == len(told.token_ids)
    assert usage.prompt_tokens == told.usage.prompt_tokens
