"""Parts of a deployment die or hang, and it heals without hands."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from cluster.processes import identify, is_alive, marked_processes
from kvrelay import Client
from tests.support.live_cluster import START_LIMIT_S, LiveCluster, live_cluster, run_kvrelay
from tests.support.tiny_models import tiny_llama
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PROMPT = "What must be true again after each of these faults? " * 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    folder = tmp_path_factory.mktemp("healing")
    settings = {
        "model": str(tiny_llama(folder / "tiny")),
        "kv_memory": "16MiB",
        "router": {"force_remote_prefill": True},
        "health": {"silence_s": 3.0},
    }
    with live_cluster(folder, settings) as running:
        yield running


@pytest.fixture(scope="module")
def answer(cluster: LiveCluster) -> tuple[int, ...]:
    return _generate(cluster)


def _generate(cluster: LiveCluster) -> tuple[int, ...]:
    with Client(cluster.state.grpc_address, timeout=60.0, retries=20) as client:
        return client.generate(PROMPT, max_tokens=10, temperature=0.0).token_ids


@pytest.mark.parametrize("part", ["prefill-0", "decode-0", "router", "redis"])
def test_a_killed_part_comes_back(cluster: LiveCluster, answer: tuple[int, ...], part: str) -> None:
    addresses = (cluster.state.http_url, cluster.state.grpc_address)
    pid = cluster.kill(part)
    cluster.wait_for_another(part, pid)
    assert (cluster.state.http_url, cluster.state.grpc_address) == addresses
    assert _generate(cluster) == answer


def test_a_killed_guardian_is_replaced(cluster: LiveCluster) -> None:
    pid = cluster.kill("guardian")
    cluster.wait_for_another("guardian", pid)


def test_a_hung_redis_is_killed_and_comes_back(cluster: LiveCluster, answer: tuple[int, ...]) -> None:
    pid = cluster.kill("redis", signal.SIGSTOP)
    cluster.wait_for_another("redis", pid)
    assert _generate(cluster) == answer
    assert "redis: no answer for 3 s" in cluster.output


@pytest.mark.parametrize("part", ["prefill-0", "decode-0"])
def test_a_hung_worker_is_killed_and_comes_back(
    cluster: LiveCluster, answer: tuple[int, ...], part: str
) -> None:
    hung = identify(cluster.kill(part, signal.SIGSTOP))
    assert hung is not None
    cluster.wait_for_another(part, hung.pid)
    assert not is_alive(hung)
    assert _generate(cluster) == answer
    assert f"{part}: no report for 3 s" in cluster.output


def test_a_hung_router_is_killed_and_comes_back(cluster: LiveCluster, answer: tuple[int, ...]) -> None:
    pid = cluster.kill("router", signal.SIGSTOP)
    cluster.wait_for_another("router", pid)
    assert _generate(cluster) == answer


def test_a_folder_that_cannot_be_written_ends_nothing(cluster: LiveCluster, answer: tuple[int, ...]) -> None:
    """As on a disk that is full: the state file gets old, everything else goes on."""
    before = {part: cluster.pid(part) for part in ("decode-0", "router")}
    run, away = cluster.home / "run", cluster.home / "away"
    healed, output = "decode-0 serves again", cluster.output
    run.rename(away)
    run.touch()
    try:
        os.kill(before["decode-0"], signal.SIGKILL)
        wait_until(lambda: cluster.output.count(healed) > output.count(healed), START_LIMIT_S)
        os.kill(before["router"], signal.SIGKILL)
        wait_until(lambda: "router: does not start" in cluster.output, START_LIMIT_S)
        assert "the state file is out of date" in cluster.output
    finally:
        run.unlink()
        away.rename(run)
    cluster.wait_for_another("router", before["router"])
    assert cluster.pid("decode-0") != before["decode-0"]
    assert _generate(cluster) == answer


def test_a_killed_supervisor_leaves_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("orphans")
    settings = {
        "model": str(tiny_llama(folder / "tiny")),
        "kv_memory": "16MiB",
        "router": {"api_key": "hunter2"},
    }
    with live_cluster(folder, settings) as cluster:
        instance = cluster.state.instance
        known = marked_processes(instance)
        # A stopped process ends by nothing but SIGKILL.
        cluster.kill("decode-0", signal.SIGSTOP)
        os.kill(cluster.process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, known)) and not marked_processes(instance))
        status = run_kvrelay(cluster.home, "status")
        assert status.returncode == 1
        assert "is gone" in status.stderr
        down = run_kvrelay(cluster.home, "down")
        assert down.returncode == 0, down.stderr
        # Nor a file: the router's settings hold the key.
        assert list((cluster.home / "run").iterdir()) == []
