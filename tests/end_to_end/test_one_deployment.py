"""One deployment, seen from its doors and from the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvrelay import Client
from tests.support.live_cluster import LiveCluster, live_cluster
from tests.support.tiny_models import tiny_llama

pytestmark = pytest.mark.cluster

PROMPT = "A prompt that is long enough for several blocks of keys and values. " * 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    folder = tmp_path_factory.mktemp("deployment")
    settings = {
        "model": str(tiny_llama(folder / "tiny")),
        "kv_memory": "16MiB",
        "router": {"force_remote_prefill": True},
        "debug": {"check_invariants": True},
    }
    with live_cluster(folder, settings) as running:
        yield running


def _complete(cluster: LiveCluster, **options: object) -> dict[str, object]:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, **options}
    answer = httpx.post(f"{cluster.state.http_url}/v1/completions", json=body, timeout=60.0)
    assert answer.status_code == 200, answer.text
    parsed: dict[str, object] = answer.json()
    return parsed


def test_both_doors_give_the_same_answer_which_went_over_nixl(cluster: LiveCluster) -> None:
    answer = _complete(cluster)
    with Client(cluster.state.grpc_address) as client:
        generation = client.generate(PROMPT, max_tokens=12, temperature=0.0, trace=True)
    choices = answer["choices"]
    assert isinstance(choices, list)
    assert generation.text == choices[0]["text"]
    assert generation.usage.completion_tokens == len(generation.token_ids)
    timeline = generation.timeline
    assert timeline is not None
    assert (timeline.transport, timeline.local_prefill, timeline.attempts) == ("nixl", False, 1)
    assert (timeline.prefill_worker, timeline.decode_worker) == ("prefill-0", "decode-0")
    assert cluster.pid("prefill-0") != cluster.pid("decode-0")


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
def test_workers_log_in_the_folder_that_is_printed_and_share_the_cores(
    cluster: LiveCluster, name: str
) -> None:
    log_dir = cluster.state.log_dir
    assert log_dir is not None
    assert str(log_dir) in cluster.output
    lines = (log_dir / f"{name}.log").read_text().splitlines()
    assert any(f'"worker_id": "{name}"' in line and '"event": "worker serves"' in line for line in lines)
    pid = cluster.pid(name)
    # Its output goes nowhere else: what a dying interpreter says is found there too.
    assert {Path(f"/proc/{pid}/fd/{number}").readlink() for number in (1, 2)} == {log_dir / f"{name}.log"}
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, cluster.process.pid)


def test_a_repeated_prompt_is_a_prefix_hit(cluster: LiveCluster) -> None:
    with Client(cluster.state.grpc_address) as client:
        first = client.generate(PROMPT + "once more", max_tokens=4, temperature=0.0)
        again = client.generate(PROMPT + "once more", max_tokens=4, temperature=0.0)
    assert again.token_ids == first.token_ids
    assert 0 < again.usage.cached_tokens < again.usage.prompt_tokens


def test_status_accounts_for_every_block(cluster: LiveCluster) -> None:
    _complete(cluster)
    result = cluster.command("status", "--json")
    assert result.returncode == 0, result.stderr
    status = json.loads(result.stdout)
    assert status["phase"] == "ready"
    assert status["router"]["requests_total"] >= 1
    assert {worker["id"] for worker in status["workers"]} == {"prefill-0", "decode-0"}
    for worker in status["workers"]:
        assert worker["healthy"]
        assert worker["pid"] == cluster.pid(worker["id"])
        blocks = worker["blocks"]
        assert blocks["free"] + blocks["cached"] + blocks["used"] + blocks["quarantined"] == blocks["total"]
    table = cluster.command("status")
    assert "prefill-0" in table.stdout


def test_generate_and_chat_stream_and_keep_history(cluster: LiveCluster) -> None:
    arguments = ("--max-tokens", "8", "--temperature", "0")
    told = cluster.command("generate", "hello", "--json", *arguments)
    assert told.returncode == 0, told.stderr
    result = json.loads(told.stdout)
    assert len(result["choices"][0]["token_ids"]) == result["usage"]["completion_tokens"]
    chat = cluster.command("chat", *arguments, text_in="hello\nand then?\n/timeline\n/quit\n")
    assert chat.returncode == 0, chat.stderr
    counts = [int(line.split()[0]) for line in chat.stderr.splitlines() if "prompt tokens" in line]
    # The second question carries the first and its answer; the third line is the timeline's own.
    assert len(counts) == 3
    assert counts[1] > counts[0] == result["usage"]["prompt_tokens"]
    assert "nixl" in chat.stderr


def test_a_second_deployment_of_the_name_is_refused(cluster: LiveCluster, tmp_path: Path) -> None:
    taken = cluster.state.http_url.rpartition(":")[2]
    model = str(tiny_llama(tmp_path / "tiny"))
    second = cluster.command("up", "--model", model, "--http-port", "0", "--grpc-port", "0")
    assert second.returncode == 1
    assert "runs already" in second.stderr
    other = cluster.command("up", "--model", model, "--name", "other", "--http-port", taken)
    assert other.returncode == 1
    assert f"router.http_port: port {taken} of 127.0.0.1 cannot be used" in other.stderr
    for result in (second, other):
        assert "Traceback" not in result.stderr
    assert cluster.state.phase == "ready"
