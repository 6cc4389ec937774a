"""A deployment that has all the work it takes, and one that is told to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.processes import is_alive, marked_processes
from kvrelay import Client, DeadlineExceededError, OverloadedError, UnavailableError
from tests.support.live_cluster import STOP_LIMIT_S, LiveCluster, live_cluster
from tests.support.live_counts import counts, router_status, wait_quiet
from tests.support.open_call import OpenCall
from tests.support.requests import prompt
from tests.support.tiny_models import tiny_llama
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

WORKERS = 2
MODEL = "deep"
LONG = {"max_tokens": 3000, "temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / MODEL, layers=24)


def settings(model: Path) -> dict[str, Any]:
    return {
        "model": str(model),
        "kv_memory": "64MiB",
        "router": {"force_remote_prefill": True, "max_running": 2, "max_queued": 1},
        "health": {"drain_timeout_s": 60.0},
        "debug": {"check_invariants": True},
    }


@pytest.fixture(scope="module")
def deployment(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with live_cluster(tmp_path_factory.mktemp("full"), settings(model)) as running:
        yield running


@pytest.fixture
def full(deployment: LiveCluster) -> Iterator[LiveCluster]:
    """Two requests run for long: the next one waits."""
    wait_quiet(deployment, WORKERS)
    with Client(deployment.state.grpc_address) as client:
        streams = [client.stream("on and on", **LONG, seed=seed) for seed in range(2)]  # type: ignore[arg-type]
        for stream in streams:
            next(stream)
        yield deployment
        for stream in streams:
            # Still running: nothing that the test did has ended it.
            next(stream)
            stream.cancel()
    wait_quiet(deployment, WORKERS)


def wait_queued(cluster: LiveCluster, number: int) -> None:
    wait_until(lambda: (status := router_status(cluster)) is not None and status.queued == number)


def body(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "and another", "max_tokens": 4, **more}


def test_prefill_is_remote_however_short_the_prompt(deployment: LiveCluster) -> None:
    with Client(deployment.state.grpc_address) as client:
        timeline = client.generate("hi", max_tokens=2).timeline
    assert timeline is not None
    assert (timeline.transport, timeline.local_prefill) == ("nixl", False)
    assert "forced" in timeline.placement_reason


def test_a_full_queue_sends_away_and_says_when_to_come_back(full: LiveCluster) -> None:
    url = f"{full.state.http_url}/v1/completions"
    with OpenCall(url, body()), Client(full.state.grpc_address) as client:
        wait_queued(full, 1)
        answer = httpx.post(url, json=body(), timeout=60.0)
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "overloaded"
        assert int(answer.headers["retry-after"]) >= 1
        with pytest.raises(OverloadedError) as caught:
            client.generate("and another", max_tokens=4)
        assert caught.value.code == "RESOURCE_EXHAUSTED"
        assert caught.value.retry_after is not None
        assert caught.value.retry_after >= 1
    wait_queued(full, 0)


def test_leaving_the_queue(full: LiveCluster) -> None:
    before = counts(full)["prefill-0"].prompt_tokens_total
    url = f"{full.state.http_url}/v1/completions"
    for streaming in (False, True):
        with OpenCall(url, body(stream=streaming)):
            wait_queued(full, 1)
        wait_queued(full, 0)
    with Client(full.state.grpc_address) as client, client.stream("and another") as stream:
        wait_queued(full, 1)
        stream.cancel()
        wait_queued(full, 0)
    assert counts(full)["prefill-0"].prompt_tokens_total == before


def test_a_deadline_ends_the_wait_in_the_queue(full: LiveCluster) -> None:
    url = f"{full.state.http_url}/v1/completions"
    for fields, headers in (({"timeout": 0.3}, {}), ({}, {"x-request-timeout": "0.3"})):
        answer = httpx.post(url, json=body(**fields), headers=headers, timeout=60.0)
        assert answer.status_code == 504
        assert "queue" in answer.json()["error"]["message"]
    with Client(full.state.grpc_address) as client, pytest.raises(DeadlineExceededError):
        client.generate("and another", timeout=0.3)
    wait_queued(full, 0)


def test_sigterm_lets_running_requests_end_and_refuses_new_ones(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with live_cluster(tmp_path_factory.mktemp("draining"), settings(model)) as cluster:
        instance = cluster.state.instance
        known = marked_processes(instance)
        state = cluster.state
        tokens = prompt(100)
        arguments: dict[str, Any] = {"token_ids": tokens, **LONG, "max_tokens": 400}
        with Client(state.grpc_address, retries=0) as client:
            whole = client.generate(**arguments, cache_salt="before")
            with client.stream(**arguments, cache_salt="during") as stream:
                next(stream)
                answers: list[httpx.Response] = []
                http = threading.Thread(
                    target=lambda: answers.append(
                        httpx.post(
                            f"{state.http_url}/v1/completions",
                            json={"model": MODEL, "prompt": tokens, **LONG, "max_tokens": 400},
                            timeout=120.0,
                        )
                    )
                )
                http.start()
                wait_until(lambda: (now := router_status(cluster)) is not None and now.running == 2)
                cluster.process.send_signal(signal.SIGTERM)
                wait_until(lambda: cluster.state.phase == "stopping")
                wait_until(lambda: httpx.get(f"{state.http_url}/ready").status_code == 503)
                refused = httpx.post(f"{state.http_url}/v1/completions", json=body(), timeout=60.0)
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "unavailable"
                with pytest.raises(UnavailableError, match="shutting down"):
                    client.generate("and another", max_tokens=4)
                assert stream.result().token_ids == whole.token_ids
        http.join()
        assert [answer.status_code for answer in answers] == [200]
        assert answers[0].json()["usage"]["completion_tokens"] == 400
        assert cluster.process.wait(STOP_LIMIT_S) == 0, cluster.output
        assert not any(map(is_alive, known))
        assert not marked_processes(instance)
