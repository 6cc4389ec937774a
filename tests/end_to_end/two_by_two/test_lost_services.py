"""Redis or the router dies under requests."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from kvrelay import Client, UnavailableError
from tests.end_to_end.two_by_two.conftest import WORKERS
from tests.end_to_end.two_by_two.long_request import PROMPT_TOKENS, LongRequest
from tests.support.live_cluster import LiveCluster
from tests.support.live_counts import prefilling, router_status, wait_for_counts, wait_published, wait_quiet
from tests.support.waiting import wait_until


def index_available(cluster: LiveCluster) -> bool:
    status = router_status(cluster)
    return status is not None and status.index_available


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_redis_lost_under_a_request(
    cluster: LiveCluster, client: Client, expected: LongRequest, number: signal.Signals
) -> None:
    arguments = expected.arguments()
    with client.stream(**arguments) as stream:
        wait_for_counts(cluster, lambda now: prefilling(now, PROMPT_TOKENS))
        redis = cluster.kill("redis", number)
        if number == signal.SIGSTOP:
            wait_until(lambda: not index_available(cluster))
        # A new request is served too, whether or not Redis is back.
        during = client.generate(token_ids=expected.prompt[:500], max_tokens=4, temperature=0.0)
        assert during.usage.completion_tokens > 0
        result = stream.result()
        expected.check(result)
    if number == signal.SIGSTOP:
        # It may have been silent for too long, and be replaced in this moment.
        with suppress(ProcessLookupError):
            cluster.kill("redis", signal.SIGCONT)
    else:
        cluster.wait_for_another("redis", redis)
    wait_until(lambda: index_available(cluster))
    # The workers publish anew what they hold: the router knows again where the prompt is.
    assert result.timeline is not None
    workers = (result.timeline.prefill_worker, result.timeline.decode_worker)
    wait_published(cluster, expected.prompt, *workers, cache_salt=arguments["cache_salt"])
    again = client.generate(**arguments)
    assert again.token_ids == expected.answer
    held = PROMPT_TOKENS // 16 * 16
    assert again.usage.cached_tokens == held
    assert again.timeline is not None
    reason = f"{PROMPT_TOKENS - held} of {PROMPT_TOKENS} tokens to compute"
    assert reason in again.timeline.placement_reason


def test_router_killed_in_the_middle_of_the_answer(
    cluster: LiveCluster, client: Client, expected: LongRequest
) -> None:
    with client.stream(**expected.arguments()) as stream:
        next(stream)
        router = cluster.kill("router")
        # The client has a part of the answer: only it can know what to do.
        with pytest.raises(UnavailableError):
            stream.result()
    cluster.wait_for_another("router", router)
    wait_quiet(cluster, WORKERS)
    expected.check(client.generate(**expected.arguments()))


def test_router_killed_before_the_first_token(cluster: LiveCluster, expected: LongRequest) -> None:
    with (
        Client(cluster.state.grpc_address, timeout=120.0, retries=100) as client,
        client.stream(**expected.arguments()) as stream,
    ):
        wait_for_counts(cluster, lambda now: prefilling(now, PROMPT_TOKENS))
        router = cluster.kill("router")
        result = stream.result()
    cluster.wait_for_another("router", router)
    assert result.token_ids == expected.answer
    assert result.usage.prompt_tokens == PROMPT_TOKENS
    assert result.usage.completion_tokens == len(expected.answer)
