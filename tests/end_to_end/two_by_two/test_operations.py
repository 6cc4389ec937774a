"""What those who run a deployment see of it."""

from __future__ import annotations

import json
from typing import Any

import httpx

from kvrelay import Client
from tests.end_to_end.two_by_two.conftest import WORKERS
from tests.end_to_end.two_by_two.long_request import LongRequest
from tests.support.live_cluster import LiveCluster
from tests.support.live_counts import (
    counts,
    prefilling,
    router_status,
    wait_for_counts,
    wait_published,
    wait_quiet,
)
from tests.support.requests import prompt
from tests.support.samples import moved, samples

ROUTER_PARTS = ("router_queue", "prefill_queue", "prefill", "transfer", "decode_queue")


def _status(cluster: LiveCluster) -> Any:
    result = cluster.command("status", "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_status_tells_what_the_workers_say(
    cluster: LiveCluster, client: Client, expected: LongRequest
) -> None:
    before = _status(cluster)["router"]
    result = client.generate(**expected.arguments())
    wait_quiet(cluster, WORKERS)
    status, stats = _status(cluster), counts(cluster)
    assert status["phase"] == "ready"
    assert {process["name"] for process in status["processes"]} >= {"supervisor", "router", "redis", *stats}
    for worker in status["workers"]:
        own = stats[worker["id"]]
        assert worker["role"] == worker["id"].split("-")[0]
        assert worker["pid"] == cluster.pid(worker["id"])
        assert worker["healthy"]
        assert not worker["draining"]
        assert (worker["running"], worker["waiting"], worker["leases"]) == (0, 0, 0)
        assert worker["blocks"] == {
            "total": own.blocks_total,
            "free": own.blocks_free,
            "cached": own.blocks_cached,
            "used": 0,
            "quarantined": 0,
        }
        assert worker["generated_tokens_total"] == own.generated_tokens_total
        assert worker["transfer_bytes_total"] == own.transfer_bytes_total
    router = status["router"]
    assert router["requests_total"] == before["requests_total"] + 1
    assert router["prompt_tokens_total"] == before["prompt_tokens_total"] + result.usage.prompt_tokens
    assert router["completion_tokens_total"] == before["completion_tokens_total"] + len(result.token_ids)
    assert router["index_available"]


def test_status_shows_a_request_on_its_way(
    cluster: LiveCluster, client: Client, expected: LongRequest
) -> None:
    with client.stream(**expected.arguments()) as stream:
        wait_for_counts(cluster, lambda now: prefilling(now, len(expected.prompt)))
        status = router_status(cluster)
        assert status is not None
        assert status.running == 1
        expected.check(stream.result())


def test_actors_have_names_and_roles_in_the_dashboard(cluster: LiveCluster) -> None:
    token = (cluster.home / "ray_auth_token").read_text()
    url = f"{cluster.state.dashboard_url}/api/v0/actors"
    assert httpx.get(url, timeout=30.0).status_code in (401, 403)
    answer = httpx.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=30.0).raise_for_status()
    actors = answer.json()["data"]["result"]["result"]
    alive = {actor["name"]: actor["class_name"] for actor in actors if actor["state"] == "ALIVE"}
    for number in range(2):
        assert alive[f"kvrelay:default:prefill-{number}"] == "PrefillActor"
        assert alive[f"kvrelay:default:decode-{number}"] == "DecodeActor"


def test_metrics_move(cluster: LiveCluster, client: Client) -> None:
    router_url = f"{cluster.state.http_url}/metrics"
    urls = {worker["id"]: worker["metrics_url"] for worker in _status(cluster)["workers"]}
    before = {name: samples(url) for name, url in (("router", router_url), *urls.items())}
    tokens = prompt(600, seed=400)
    first = client.generate(token_ids=tokens, max_tokens=8, temperature=0.0, ignore_eos=True)
    assert first.timeline is not None
    wait_published(cluster, tokens, first.timeline.decode_worker)
    client.generate(token_ids=tokens, max_tokens=8, temperature=0.0, ignore_eos=True)
    wait_quiet(cluster, WORKERS)

    router = moved(before["router"], samples(router_url))
    assert router >= {
        "kvrelay_router_requests_total/length",
        "kvrelay_router_prompt_tokens_total",
        "kvrelay_router_cached_tokens_total",
        "kvrelay_router_completion_tokens_total",
        "kvrelay_router_placements_total/remote",
        "kvrelay_router_placements_total/local",
        "kvrelay_router_ttft_seconds_count",
        "kvrelay_router_tpot_seconds_count",
        "kvrelay_router_overhead_seconds_count",
        "kvrelay_router_calls_total/Generate/grpc/OK",
        *(f"kvrelay_router_ttft_part_seconds_count/{part}" for part in ROUTER_PARTS),
        "kvrelay_router_ttft_part_seconds_sum/prefill",
    }
    status = router_status(cluster)
    assert status is not None
    blocks = len(tokens) // status.workers[0].info.identity.block_size
    prefill_after = samples(urls[first.timeline.prefill_worker])
    prefill = moved(before[first.timeline.prefill_worker], prefill_after)
    everywhere = {
        "kvrelay_worker_steps_total",
        "kvrelay_worker_prompt_tokens_total",
        "kvrelay_worker_generated_tokens_total",
        "kvrelay_worker_step_seconds_count",
        "kvrelay_worker_batch_size_count",
    }
    assert prefill >= everywhere
    decode_after = samples(urls[first.timeline.decode_worker])
    decode = moved(before[first.timeline.decode_worker], decode_after)
    assert decode >= everywhere | {
        "kvrelay_worker_prefix_hit_tokens_total",
        "kvrelay_worker_transfer_bytes_total",
        "kvrelay_worker_transfer_seconds_total",
    }
    for sampled in (prefill_after, decode_after):
        # Other blocks make room where the pool is full, so they need not have become more.
        assert sampled["kvrelay_worker_blocks/cached"] >= blocks
        assert sampled.keys() >= {
            "kvrelay_worker_preemptions_total/recompute",
            "kvrelay_worker_preemptions_total/swap",
            "kvrelay_worker_leases",
            "kvrelay_worker_blocks/free",
            "kvrelay_worker_blocks/pinned",
            "kvrelay_worker_blocks/quarantined",
            "kvrelay_worker_quarantine_age_seconds",
        }


def test_failures_are_counted_by_kind(cluster: LiveCluster, expected: LongRequest) -> None:
    url = f"{cluster.state.http_url}/metrics"
    before = samples(url)
    with Client(cluster.state.grpc_address, timeout=120.0) as client:
        with client.stream(**expected.arguments()) as stream:
            now = wait_for_counts(cluster, lambda now: prefilling(now, len(expected.prompt)))
            prefill = prefilling(now, len(expected.prompt))
            assert prefill is not None
            pid = cluster.kill(prefill)
            expected.check(stream.result())
        with client.stream(**expected.arguments()) as stream:
            next(stream)
    cluster.wait_for_another(prefill, pid)
    wait_quiet(cluster, WORKERS)
    grown = moved(before, samples(url))
    assert "kvrelay_router_requests_total/cancelled" in grown
    assert grown & {
        "kvrelay_router_failovers_total/kv_lost",
        "kvrelay_router_failovers_total/prefill_lost",
    }
