"""What every worker answers, shown on a decode worker with real requests."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from cluster import embedded_redis
from decode_worker.worker import DecodeWorker
from engine.models.revision import model_revision
from kvrelay.v1 import worker_pb2
from prefix_index.hashing import ChainHasher, hash_model
from prefix_index.index import RedisPrefixIndex
from tests.support.pair import Pair, worker_pair
from tests.support.requests import prompt, work_request
from tests.support.workers import LIMIT_S, eventually, worker_config

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def _health(channel: grpc.aio.Channel) -> int:
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    return int(answer.status)


async def test_describe(model_dir: Path) -> None:
    async with worker_pair(model_dir) as pair:
        for link, role in (
            (pair.prefill_link, worker_pb2.WORKER_ROLE_PREFILL),
            (pair.decode_link, worker_pb2.WORKER_ROLE_DECODE),
        ):
            info = await link.worker.Describe(worker_pb2.DescribeRequest())
            assert info == link.info
            assert info.role == role
            assert info.num_blocks == 96
            assert info.max_model_len == 1024
            assert info.identity.revision == model_revision(model_dir)
            assert info.layout.block_bytes == 3 * 2 * 2 * 16 * 16 * 4
            assert await _health(link.channel) == SERVING
        assert pair.prefill_link.info.identity == pair.decode_link.info.identity


async def test_watch_reports_at_once_and_goes_on(model_dir: Path) -> None:
    async with worker_pair(model_dir) as pair:
        call = pair.decode_link.worker.Watch(worker_pb2.WatchRequest(interval_ms=50))
        first = await call.read()
        assert (first.worker_id, first.steps, first.draining) == ("decode-0", 0, False)
        await pair.router.tokens_of(work_request("r", prompt(40), max_tokens=7))
        async with asyncio.timeout(LIMIT_S):
            while (await call.read()).stats.generated_tokens_total < 7:
                pass
        report = await call.read()
        assert report.steps >= 7
        assert report.stats.prompt_tokens_total == 40
        assert report.engine_silent_s < LIMIT_S
        call.cancel()


async def test_drain_waits_for_the_last_request(model_dir: Path) -> None:
    async with worker_pair(model_dir) as pair:
        pair.decode_pace.engine.delay_s = 0.02
        reply = pair.router.submit(work_request("r", prompt(30), max_tokens=40))
        await eventually(lambda: reply.tokens)
        drain = pair.decode_link.worker.Drain
        assert (await drain(worker_pb2.DrainRequest(timeout_s=0.05))).remaining == 1
        assert await _health(pair.decode_link.channel) == NOT_SERVING
        assert (await pair.decode_link.report()).draining
        assert (await drain(worker_pb2.DrainRequest(timeout_s=LIMIT_S))).remaining == 0
        await pair.router.end_of(reply)
        assert len(reply.tokens) == 40


async def test_a_dead_engine_is_not_serving(model_dir: Path) -> None:
    async with worker_pair(model_dir) as pair:
        assert not pair.decode.failed.done()
        pair.decode_pace.engine.broken = True
        await pair.router.end_of(pair.router.submit(work_request("r", prompt(5))))
        error = await asyncio.wait_for(asyncio.shield(pair.decode.failed), LIMIT_S)
        assert "broke" in str(error)
        assert await _health(pair.decode_link.channel) == NOT_SERVING
        assert not pair.prefill.failed.done()


async def _metrics(pair: Pair, role: str) -> dict[str, float]:
    link = pair.prefill_link if role == "prefill" else pair.decode_link
    host, port = link.info.metrics_url.removeprefix("http://").removesuffix("/metrics").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert " 200 " in head.splitlines()[0]
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            assert sample.labels["worker"] == f"{role}-0"
            assert sample.labels["role"] == role
            detail = sample.labels.get("state") or sample.labels.get("kind") or sample.labels.get("reason")
            if "le" not in sample.labels:
                values[sample.name + (f":{detail}" if detail else "")] = sample.value
    return values


async def test_metrics_are_what_happened(model_dir: Path) -> None:
    async with worker_pair(model_dir) as pair:
        for name in ("first", "second"):
            request = work_request(name, prompt(40), max_tokens=5)
            ticket = await pair.prefill_link.start_prefill(name, prompt(40), max_tokens=5)
            await pair.router.tokens_of(request, ticket)
        request = work_request("lost", prompt(40))
        ticket.ticket_id = "gone"
        await pair.router.end_of(pair.router.submit(request, ticket))
        await pair.router.end_of(pair.router.submit(work_request("bad", [])))
        await pair.quiet()
        prefill, decode = await _metrics(pair, "prefill"), await _metrics(pair, "decode")
        assert prefill["kvrelay_worker_prompt_tokens_total"] == 80
        assert prefill["kvrelay_worker_prefix_hit_tokens_total"] == 32
        assert prefill["kvrelay_worker_leases"] == 0
        # The first token of each was drawn by the prefill worker.
        assert decode["kvrelay_worker_generated_tokens_total"] == 8
        # Three blocks for the first; the second finds two of them in its cache.
        assert decode["kvrelay_worker_transfer_bytes_total"] == 4 * pair.decode_link.info.layout.block_bytes
        assert decode["kvrelay_worker_transfer_seconds_total"] > 0
        assert decode["kvrelay_worker_handover_failures_total:kv_lost"] == 1
        assert decode["kvrelay_worker_refusals_total:invalid"] == 1
        assert decode["kvrelay_worker_batch_size_count"] == decode["kvrelay_worker_step_seconds_count"] > 0
        states = ("free", "cached", "pinned", "quarantined")
        assert sum(decode[f"kvrelay_worker_blocks:{state}"] for state in states) == 96
        assert decode["kvrelay_worker_preemptions_total:recompute"] == 0
        assert decode["kvrelay_worker_preemptions_total:swap"] == 0
        assert decode["kvrelay_worker_quarantine_age_seconds"] == 0


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    with embedded_redis.start(tmp_path / "redis.log") as server:
        yield server.url


async def test_blocks_are_published_to_the_index(model_dir: Path, redis_url: str) -> None:
    namespace = uuid.uuid4().hex
    index = RedisPrefixIndex(redis_url, namespace)
    overrides = {"redis_url": redis_url, "index_namespace": namespace}
    name = hash_model("tiny", model_revision(model_dir))
    chain = ChainHasher(name, 16).chain(prompt(40))
    async with worker_pair(model_dir, prefill=dict(overrides), decode=dict(overrides)) as pair:
        ticket = await pair.prefill_link.start_prefill("r", prompt(40), max_tokens=3)
        await pair.router.tokens_of(work_request("r", prompt(40), max_tokens=3), ticket)
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while (await index.match(chain)).leading_blocks != {"prefill-0": 2, "decode-0": 2}:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)
    # Stopping gives the lease up: the blocks are gone at once.
    assert (await index.match(chain)).leading_blocks == {}
    await index.close()


async def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    worker = DecodeWorker(worker_config(tmp_path / "absent", "decode-0"))
    with pytest.raises(ValueError, match="absent"):
        await worker.start()
    with pytest.raises(RuntimeError, match="not been started"):
        worker.report()
    await worker.stop()
