"""Clients that hang up, cancel or run out of time: nothing goes on for them anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest

from kvrelay import Client, DeadlineExceededError, RequestCancelledError
from tests.end_to_end.two_by_two.conftest import MODEL, WORKERS
from tests.end_to_end.two_by_two.long_request import PROMPT_TOKENS, LongRequest
from tests.support.live_cluster import LiveCluster
from tests.support.live_counts import Counts, counts, decoding, prefilling, wait_for_counts, wait_quiet
from tests.support.open_call import OpenCall

# More than anybody here waits for: whoever reaches it was not stopped.
ENDLESS = 1000

Begin = Callable[[LiveCluster, Mapping[str, Any]], AbstractContextManager[None]]


@contextmanager
def http_stream(cluster: LiveCluster, arguments: Mapping[str, Any]) -> Iterator[None]:
    with OpenCall(f"{cluster.state.http_url}/v1/completions", {**_body(arguments), "stream": True}):
        yield


@contextmanager
def http_whole(cluster: LiveCluster, arguments: Mapping[str, Any]) -> Iterator[None]:
    with OpenCall(f"{cluster.state.http_url}/v1/completions", _body(arguments)):
        yield


@contextmanager
def grpc_stream(cluster: LiveCluster, arguments: Mapping[str, Any]) -> Iterator[None]:
    with Client(cluster.state.grpc_address) as client, client.stream(**arguments) as stream:
        yield
        stream.cancel()
        with pytest.raises(RequestCancelledError):
            stream.result()


def _body(arguments: Mapping[str, Any]) -> dict[str, Any]:
    body = {name: value for name, value in arguments.items() if name != "token_ids"}
    return {"model": MODEL, "prompt": arguments["token_ids"], **body}


def generated(now: Counts) -> int:
    return sum(stats.generated_tokens_total for stats in now.values())


doors = pytest.mark.parametrize("begin", [http_stream, http_whole, grpc_stream])


@doors
def test_leaving_while_the_prompt_is_computed(
    cluster: LiveCluster, expected: LongRequest, begin: Begin
) -> None:
    before = generated(counts(cluster))
    with begin(cluster, expected.arguments()):
        wait_for_counts(cluster, lambda now: prefilling(now, PROMPT_TOKENS))
    wait_quiet(cluster, WORKERS)
    # The prompt was never computed to its end: that would have drawn a token.
    assert generated(counts(cluster)) == before


@doors
def test_leaving_in_the_middle_of_the_answer(
    cluster: LiveCluster, expected: LongRequest, begin: Begin
) -> None:
    before = generated(counts(cluster))
    arguments = {**expected.arguments(), "token_ids": expected.prompt[:200], "max_tokens": ENDLESS}
    with begin(cluster, arguments):
        wait_for_counts(cluster, lambda now: decoding(now) and generated(now) > before + 5)
    wait_quiet(cluster, WORKERS)
    assert before + 5 < generated(counts(cluster)) < before + ENDLESS


def test_leaving_with_several_choices(cluster: LiveCluster, expected: LongRequest) -> None:
    before = generated(counts(cluster))
    arguments = {**expected.arguments(), "token_ids": expected.prompt[:200], "max_tokens": ENDLESS, "n": 4}
    with grpc_stream(cluster, arguments):
        wait_for_counts(cluster, lambda now: generated(now) > before + 20)
    wait_quiet(cluster, WORKERS)
    assert generated(counts(cluster)) < before + 4 * ENDLESS


@pytest.mark.parametrize("prompt_tokens", [200, PROMPT_TOKENS])
@pytest.mark.parametrize(
    ("fields", "headers"),
    [({"timeout": 0.5}, {}), ({}, {"x-request-timeout": "0.5"})],
    ids=["field", "header"],
)
def test_deadline_over_http(
    cluster: LiveCluster,
    expected: LongRequest,
    prompt_tokens: int,
    fields: dict[str, Any],
    headers: dict[str, str],
) -> None:
    before = generated(counts(cluster))
    arguments = {**expected.arguments(), "token_ids": expected.prompt[:prompt_tokens], "max_tokens": ENDLESS}
    body = {**_body(arguments), **fields}
    answer = httpx.post(f"{cluster.state.http_url}/v1/completions", json=body, headers=headers, timeout=60.0)
    assert answer.status_code == 504, answer.text
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    wait_quiet(cluster, WORKERS)
    assert generated(counts(cluster)) < before + ENDLESS


@pytest.mark.parametrize("prompt_tokens", [200, PROMPT_TOKENS])
def test_deadline_over_grpc(
    cluster: LiveCluster, client: Client, expected: LongRequest, prompt_tokens: int
) -> None:
    before = generated(counts(cluster))
    arguments = {**expected.arguments(), "token_ids": expected.prompt[:prompt_tokens], "max_tokens": ENDLESS}
    with pytest.raises(DeadlineExceededError):
        client.generate(**arguments, timeout=0.5)
    wait_quiet(cluster, WORKERS)
    assert generated(counts(cluster)) < before + ENDLESS
