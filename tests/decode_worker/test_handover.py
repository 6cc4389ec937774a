"""Handovers between two workers in one process, real gRPC between them."""

from __future__ import annotations

from pathlib import Path

from kvrelay.v1 import common_pb2
from tests.support.aggregated import aggregated_tokens
from tests.support.pair import worker_pair
from tests.support.requests import prompt, work_request


async def test_answer_equals_the_aggregated_one(model_dir: Path) -> None:
    request = work_request("r1", prompt(150), trace=True)
    async with worker_pair(model_dir) as pair:
        ticket = await pair.prefill_link.start_prefill("r1", prompt(150))
        reply = pair.router.submit(request, ticket)
        end = await pair.router.end_of(reply)
        assert end.finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert reply.tokens == aggregated_tokens(model_dir, request)
        timeline = end.timeline
        assert timeline.transport == "in_process"
        assert not timeline.local_prefill
        assert timeline.prefill_worker == "prefill-0"
        assert timeline.transfer_bytes == 10 * pair.prefill_link.info.layout.block_bytes
        assert {span.name for span in timeline.spans} == {"prefill_chunk", "transfer"}
        await pair.quiet()
