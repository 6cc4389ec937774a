from __future__ import annotations

import time

import pytest

from kvrelay.v1 import common_pb2
from router.metrics import RateWindow, RouterMetrics
from tests.router.harness import Harness
from tests.support.fake_workers import FakeDecodeWorker, FakePrefillWorker


async def test_a_request_leaves_its_traces() -> None:
    async with Harness([FakePrefillWorker("prefill-0")], [FakeDecodeWorker("decode-0")]) as router:
        await router.run()
        await router.run(router.request(max_tokens=1))
        assert router.metric("requests_total", outcome="length") == 2
        assert router.metric("placements_total", prefill="remote") == 2
        assert router.metric("prompt_tokens_total") == 40
        assert router.metric("completion_tokens_total") == 13
        assert router.metric("ttft_seconds_count") == 2
        assert router.metric("tpot_seconds_count") == 1, "one token has no time between tokens"
        assert router.metric("overhead_seconds_count") == 2
        assert 0 < router.metric("overhead_seconds_sum") < router.metric("ttft_seconds_sum")
        for part in ("router_queue", "prefill_queue", "prefill", "transfer", "decode_queue"):
            assert router.metric("ttft_part_seconds_count", part=part) == 2
        assert router.metric("index_available") == 0
        async with router.core.dispatcher.admit():
            assert router.metric("running_requests") == 1
        assert router.metric("running_requests") == 0


def test_parts_of_the_first_token_are_the_timelines() -> None:
    metrics = RouterMetrics()
    timeline = common_pb2.Timeline(
        router_queue_s=1, prefill_queue_s=2, prefill_s=3, transfer_s=4, decode_queue_s=5, decode_s=6
    )
    metrics.finished(timeline, prompt_tokens=9, cached_tokens=3, ttft_s=15.0, tpot_s=None)
    sums = {
        part: metrics.registry.get_sample_value("kvrelay_router_ttft_part_seconds_sum", {"part": part})
        for part in ("router_queue", "prefill_queue", "prefill", "transfer", "decode_queue")
    }
    assert list(sums.values()) == [1, 2, 3, 4, 5]
    assert (metrics.prompt_tokens_total, metrics.cached_tokens_total) == (9, 3)


def test_the_rate_forgets_what_is_older_than_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    window = RateWindow()
    window.add(50)
    now += 6
    window.add(50)
    assert window.per_second() == 10
    now += 6
    assert window.per_second() == 5
    now += 6
    assert window.per_second() == 0
