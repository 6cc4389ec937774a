"""The way of one request's KV from worker to worker, as its client can see it."""

from __future__ import annotations

from kvrelay import Client
from tests.end_to_end.two_by_two.long_request import PROMPT_TOKENS, LongRequest
from tests.support.live_cluster import LiveCluster


def test_kv_travels_over_nixl_while_the_prompt_is_computed(
    cluster: LiveCluster, client: Client, expected: LongRequest
) -> None:
    result = client.generate(**expected.arguments(), trace=True)
    expected.check(result)
    timeline = result.timeline
    assert timeline is not None
    assert (timeline.transport, timeline.local_prefill, timeline.attempts) == ("nixl", False, 1)
    prefill, decode = cluster.pid(timeline.prefill_worker), cluster.pid(timeline.decode_worker)
    assert prefill != decode
    chunks = [span for span in timeline.spans if span.name == "prefill_chunk"]
    reads = [span for span in timeline.spans if span.name == "transfer"]
    assert {span.pid for span in chunks} == {prefill}
    assert {span.pid for span in reads} == {decode}
    assert max(span.num_tokens for span in chunks) == PROMPT_TOKENS
    assert timeline.transfer_bytes == sum(span.num_bytes for span in reads) > 0
    # One machine, one clock: the first read began long before the last chunk was computed.
    last_chunk = max(chunks, key=lambda span: span.end_unix_ns)
    assert min(span.start_unix_ns for span in reads) < last_chunk.start_unix_ns < last_chunk.end_unix_ns
