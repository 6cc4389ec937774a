from __future__ import annotations

from pathlib import Path

import pytest

from cluster.ray_deaths import EndedProcess, RayDeaths, cause_of
from tests.support.live_cluster import kvrelay_environment, run_kvrelay
from tests.support.tiny_models import tiny_llama

# As Ray 2.60 has it.
DETAIL = """1 worker(s) were killed due to the node running low on memory. \
Memory on the node (IP: 127.0.0.1, ID: f1ed45294a) was 22.41GB used / 23.54GB limit (0.951997)
OOM kill reason: Memory usage 24066163712B exceeded threshold of 24012688588B (95.0% of 25276514304B limit)
Object store memory usage: [- objects spillable: 0
"""


def test_a_kill_for_memory_is_told_with_what_can_be_done() -> None:
    told = cause_of(EndedProcess(7, "NODE_OUT_OF_MEMORY", DETAIL, 0))
    assert "Ray's memory monitor" in told
    assert "22.41 of 23.54 GB" in told
    assert "kv_memory" in told
    assert "RAY_memory_usage_threshold (now 95.0 %)" in told


def test_a_kill_for_memory_in_other_words_is_told_all_the_same() -> None:
    told = cause_of(EndedProcess(7, "NODE_OUT_OF_MEMORY", "in another version's words", 0))
    assert "Ray's memory monitor" in told
    assert "GB" not in told


def test_other_ends_have_no_cause_of_ray_s() -> None:
    assert cause_of(EndedProcess(7, "SYSTEM_ERROR", "Worker unexpectedly exits", 0)) == ""


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:1"])
def test_a_ray_that_does_not_answer_says_nothing(url: str) -> None:
    deaths = RayDeaths(url)
    assert deaths.cause("node", 1) == ""
    assert deaths.latest_kill(0.0) == ""


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_workers_that_ray_kills_for_memory_are_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that counts as full before anything has started."""
    monkeypatch.setattr(
        "tests.support.live_cluster.kvrelay_environment",
        lambda home: {**kvrelay_environment(home), "RAY_memory_usage_threshold": "0.01"},
    )
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        f"model: {tiny_llama(tmp_path / 'tiny')}\nkv_memory: 16MiB\nhealth: {{start_timeout_s: 10}}\n"
        "router: {http_port: 0, grpc_port: 0}\n"
    )
    result = run_kvrelay(tmp_path, "up", str(spec))
    assert result.returncode != 0
    assert "killed by Ray's memory monitor" in result.stderr
    assert "RAY_memory_usage_threshold (now 1.0 %)" in result.stderr
