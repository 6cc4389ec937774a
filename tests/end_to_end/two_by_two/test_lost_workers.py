"""Workers die or hang under a request; its client notices nothing but the time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster.processes import identify, is_alive
from kvrelay import Client, Stream
from tests.end_to_end.two_by_two.long_request import MAX_TOKENS, PROMPT_TOKENS, LongRequest
from tests.support.live_cluster import LiveCluster
from tests.support.live_counts import Counts, prefilling, wait_for_counts
from tests.support.samples import samples
from tests.support.waiting import wait_until


@contextmanager
def replaced(cluster: LiveCluster, *workers: str) -> Iterator[None]:
    """At the end each of the workers has another process, and the old one is gone."""
    before = {worker: identify(cluster.pid(worker)) for worker in workers}
    yield
    for worker, process in before.items():
        assert process is not None
        cluster.wait_for_another(worker, process.pid)
        assert not is_alive(process)


def wait_prefilling(cluster: LiveCluster) -> tuple[str, str]:
    """The prefill and the decode worker that have the request, in the middle of its prompt and its reads."""

    def found(now: Counts) -> tuple[str, str] | None:
        prefill = prefilling(now, PROMPT_TOKENS)
        # It takes blocks when it begins to read.
        reading = [name for name, stats in now.items() if name.startswith("decode") and stats.blocks_pinned]
        return (prefill, reading[0]) if prefill and reading else None

    pair = found(wait_for_counts(cluster, found))
    assert pair is not None
    return pair


def read_some(stream: Stream) -> None:
    """Reads a part of the answer, the first token surely among it."""
    tokens = 0
    while tokens < 10:
        tokens += len(next(stream).token_ids)
    assert tokens < MAX_TOKENS // 2


def decoder_of(cluster: LiveCluster) -> str:
    """The worker that decodes the one request there is."""
    now = wait_for_counts(cluster, lambda now: any(stats.running for stats in now.values()))
    [busy] = [name for name, stats in now.items() if stats.running]
    assert busy.startswith("decode")
    return busy


def failovers(cluster: LiveCluster) -> float:
    """Attempts that the router gave up, whatever the cause."""
    now = samples(f"{cluster.state.http_url}/metrics")
    return sum(value for name, value in now.items() if name.startswith("kvrelay_router_failovers_total"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_prefill_worker_lost_while_it_prefills_and_its_kv_is_read(
    cluster: LiveCluster, client: Client, expected: LongRequest, number: signal.Signals
) -> None:
    with client.stream(**expected.arguments()) as stream:
        prefill, decode = wait_prefilling(cluster)
        with replaced(cluster, prefill):
            cluster.kill(prefill, number)
            result = stream.result()
            expected.check(result)
            timeline = result.timeline
            assert timeline is not None
            assert timeline.attempts > 1
            assert timeline.prefill_worker != prefill
            assert timeline.decode_worker == decode


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_decode_worker_lost_in_the_middle_of_the_answer(
    cluster: LiveCluster, client: Client, expected: LongRequest, number: signal.Signals
) -> None:
    with client.stream(**expected.arguments()) as stream:
        read_some(stream)
        decode = decoder_of(cluster)
        with replaced(cluster, decode):
            cluster.kill(decode, number)
            result = stream.result()
            expected.check(result)
            timeline = result.timeline
            assert timeline is not None
            assert timeline.attempts > 1
            assert timeline.decode_worker != decode


def test_decode_worker_lost_while_the_prompt_is_computed_costs_no_second_prefill(
    cluster: LiveCluster, client: Client, expected: LongRequest
) -> None:
    with client.stream(**expected.arguments()) as stream:
        prefill, decode = wait_prefilling(cluster)
        with replaced(cluster, decode):
            cluster.kill(decode)
            result = stream.result()
            expected.check(result)
            timeline = result.timeline
            assert timeline is not None
            assert (timeline.attempts, timeline.prefill_worker) == (2, prefill)
            assert timeline.decode_worker != decode
            assert "re-attached" in timeline.placement_reason


def test_both_workers_of_a_request_lost_at_once(
    cluster: LiveCluster, client: Client, expected: LongRequest
) -> None:
    with client.stream(**expected.arguments()) as stream:
        prefill, decode = wait_prefilling(cluster)
        with replaced(cluster, prefill, decode):
            cluster.kill(prefill)
            cluster.kill(decode)
            expected.check(stream.result())


def test_every_worker_lost_in_the_middle_of_the_answer(
    cluster: LiveCluster, client: Client, expected: LongRequest
) -> None:
    everyone = ("prefill-0", "prefill-1", "decode-0", "decode-1")
    with client.stream(**expected.arguments()) as stream:
        read_some(stream)
        with replaced(cluster, *everyone):
            for worker in everyone:
                cluster.kill(worker)
            expected.check(stream.result())


def test_a_hung_decode_worker_that_wakes_harms_nobody(
    cluster: LiveCluster, client: Client, expected: LongRequest
) -> None:
    before = failovers(cluster)
    with client.stream(**expected.arguments()) as stream:
        _, decode = wait_prefilling(cluster)
        cluster.kill(decode, signal.SIGSTOP)
        # Awake again as soon as the router gives it up, before the supervisor does.
        wait_until(lambda: failovers(cluster) > before)
        cluster.kill(decode, signal.SIGCONT)
        result = stream.result()
        expected.check(result)
        assert result.timeline is not None
        assert result.timeline.attempts > 1
        assert result.timeline.decode_worker != decode
