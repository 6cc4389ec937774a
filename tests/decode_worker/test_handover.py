"""Handovers between two workers in one process, real gRPC between them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kv_transfer.transports.base import PullState
from kv_transfer.transports.in_process import InProcessPull
from kvrelay.v1 import common_pb2, decode_pb2, prefill_pb2
from tests.support.aggregated import aggregated_tokens
from tests.support.pair import Pair, worker_pair
from tests.support.requests import PREFILL_CHUNK, prompt, work_request
from tests.support.tiny_families import WINDOW, tiny_variety
from tests.support.workers import eventually

WorkError = decode_pb2.WorkError


async def test_answer_equals_the_aggregated_one(model_dir: Path) -> None:
    request = work_request("r1", prompt(150), trace=True)
    async with worker_pair(model_dir) as pair:
        ticket = await pair.prefill_link.start_prefill("r1", prompt(150))
        reply = pair.router.submit(request, ticket)
        end = await pair.router.end_of(reply)
        assert end.finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert reply.tokens == aggregated_tokens(model_dir, request)
        assert reply.ends == 1
        timeline = end.timeline
        assert timeline.transport == "in_process"
        assert not timeline.local_prefill
        assert (timeline.prefill_worker, timeline.decode_worker) == ("prefill-0", "decode-0")
        assert timeline.transfer_bytes == 10 * pair.prefill_link.info.layout.block_bytes
        assert min(timeline.prefill_s, timeline.decode_s, timeline.transfer_busy_s) > 0
        await pair.quiet()


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 64, PREFILL_CHUNK * 3 + 5])
async def test_prompts_of_any_length(model_dir: Path, num_tokens: int) -> None:
    request = work_request("r", prompt(num_tokens, seed=num_tokens))
    async with worker_pair(model_dir) as pair:
        assert await _remote(pair, request) == aggregated_tokens(model_dir, request)
        await pair.quiet()


async def test_many_at_once_sampled(model_dir: Path) -> None:
    requests = [
        work_request(f"r{n}", prompt(20 + 13 * n, seed=n), temperature=0.9, top_p=0.9, seed=100 + n)
        for n in range(8)
    ]
    async with worker_pair(model_dir) as pair:
        answers = await asyncio.gather(*(_remote(pair, request) for request in requests))
        assert answers == [aggregated_tokens(model_dir, request) for request in requests]
        await pair.quiet()


async def test_local_prefill(model_dir: Path) -> None:
    request = work_request("r", prompt(70))
    async with worker_pair(model_dir) as pair:
        reply = pair.router.submit(request)
        end = await pair.router.end_of(reply)
        assert reply.tokens == aggregated_tokens(model_dir, request)
        assert end.timeline.local_prefill
        assert not end.timeline.transfer_bytes
        assert end.timeline.prefill_s > 0
        await pair.quiet()


async def test_blocks_that_are_here_already_are_not_read(model_dir: Path) -> None:
    shared = prompt(96)
    first = work_request("first", shared + prompt(10, seed=1))
    second = work_request("second", shared + prompt(10, seed=2))
    async with worker_pair(model_dir) as pair:
        await _remote(pair, first)
        reply = pair.router.submit(second, await _start(pair, second))
        end = await pair.router.end_of(reply)
        assert reply.tokens == aggregated_tokens(model_dir, second)
        assert reply.cached_tokens == 96
        assert end.timeline.transfer_bytes == pair.prefill_link.info.layout.block_bytes
        await pair.quiet()


async def test_a_context_that_is_here_already_needs_no_read(model_dir: Path) -> None:
    """Whole blocks, all of them prefix hits: only the first token comes over."""
    async with worker_pair(model_dir) as pair:
        for name in ("first", "second"):
            request = work_request(name, prompt(96))
            reply = pair.router.submit(request, await _start(pair, request))
            end = await pair.router.end_of(reply)
            assert reply.tokens == aggregated_tokens(model_dir, request)
        assert end.timeline.transfer_bytes == 0
        assert reply.cached_tokens == 95
        await pair.quiet()


async def test_resumed_tokens_are_context_and_count(model_dir: Path) -> None:
    whole = aggregated_tokens(model_dir, work_request("whole", prompt(40), max_tokens=12))
    async with worker_pair(model_dir) as pair:
        request = work_request("r", prompt(40), attempt=2, max_tokens=12, resumed=whole[:5])
        reply = pair.router.submit(request, await _start(pair, request))
        await pair.router.end_of(reply)
        assert reply.first_index == 5
        assert reply.tokens == whole[5:]
        await pair.quiet()


async def test_first_token_may_be_the_last(model_dir: Path) -> None:
    first = aggregated_tokens(model_dir, work_request("x", prompt(40), max_tokens=1))
    async with worker_pair(model_dir) as pair:
        request = work_request("r", prompt(40), stop_token_ids=first)
        reply = pair.router.submit(request, await _start(pair, request))
        end = await pair.router.end_of(reply)
        assert end.finish_reason == common_pb2.FINISH_REASON_STOP
        assert reply.tokens == first
        await pair.quiet()


async def test_reading_starts_before_the_prefill_ends(model_dir: Path) -> None:
    request = work_request("r", prompt(400), max_tokens=2, trace=True)
    async with worker_pair(model_dir) as pair:
        pair.prefill_pace.engine.delay_s = 0.05
        reply = pair.router.submit(request, await _start(pair, request))
        end = await pair.router.end_of(reply)
        chunks = [span for span in end.timeline.spans if span.name == "prefill_chunk"]
        reads = [span for span in end.timeline.spans if span.name == "transfer"]
        assert len(chunks) == 13
        assert min(r.start_unix_ns for r in reads) < max(c.end_unix_ns for c in chunks)
        assert sum(read.num_bytes for read in reads) == end.timeline.transfer_bytes
        assert all(span.pid for span in end.timeline.spans)
        assert reply.tokens == aggregated_tokens(model_dir, request)


async def test_handovers_wait_for_room(model_dir: Path) -> None:
    # 12 blocks: each request takes 7 (100 tokens and the next one), so only one finds room at a time.
    requests = [work_request(f"r{n}", prompt(100, seed=n), max_tokens=8) for n in range(4)]
    async with worker_pair(model_dir, decode={"num_blocks": 12, "max_model_len": 192}) as pair:
        answers = await asyncio.gather(*(_remote(pair, request) for request in requests))
        assert answers == [aggregated_tokens(model_dir, request) for request in requests]
        await pair.quiet()


async def test_handovers_wait_while_others_decode_on(model_dir: Path) -> None:
    async with worker_pair(model_dir, decode={"num_blocks": 12, "max_model_len": 192}) as pair:
        pair.decode_pace.engine.delay_s = 0.02
        long = pair.router.submit(work_request("long", prompt(60), max_tokens=60))
        await eventually(lambda: long.tokens)
        request = work_request("waits", prompt(150), max_tokens=3)
        waits = pair.router.submit(request, await _start(pair, request))
        await eventually(lambda: _leases(pair))
        await pair.router.end_of(long)
        await pair.router.end_of(waits)
        assert len(long.tokens) == 60
        assert waits.tokens == aggregated_tokens(model_dir, request)
        await pair.quiet()


async def test_failed_read_leaves_the_ticket_to_another_attempt(model_dir: Path) -> None:
    request = work_request("r", prompt(100))
    async with worker_pair(model_dir) as pair:
        pair.decode_transport.gate = lambda _: PullState.FAILED
        ticket = await _start(pair, request)
        end = await pair.router.end_of(pair.router.submit(request, ticket))
        assert end.error.kind == WorkError.KIND_KV_LOST
        assert end.error.ticket_alive
        assert (await pair.decode_link.quiet()).blocks_cached == 0

        pair.decode_transport.gate = lambda _: PullState.DONE
        again = work_request("r", prompt(100), attempt=2)
        assert await pair.router.tokens_of(again, ticket) == aggregated_tokens(model_dir, request)
        await pair.quiet()
        # Nothing was computed anew.
        assert (await pair.prefill_link.report()).stats.prompt_tokens_total == 100


async def test_a_later_attempt_takes_the_same_ticket_over(model_dir: Path) -> None:
    """The router lost its stream to the only decode worker, and comes back with what it has."""
    async with worker_pair(model_dir) as pair:
        pair.decode_transport.gate = lambda _: PullState.PENDING
        request = work_request("r", prompt(100))
        ticket = await _start(pair, request)
        first = pair.router.submit(request, ticket)
        await eventually(lambda: pair.decode.report().stats.blocks_pinned)
        again = pair.router.submit(work_request("r", prompt(100), attempt=2), ticket)
        await pair.router.end_of(first)
        pair.decode_transport.gate = lambda _: PullState.DONE
        await pair.router.end_of(again)
        assert again.tokens == aggregated_tokens(model_dir, request)
        # Nothing was computed anew.
        assert (await pair.prefill_link.report()).stats.prompt_tokens_total == 100
        await pair.quiet()


@pytest.mark.parametrize("how", ["cancel", "deadline", "read_timeout", "disconnect"])
async def test_blocks_of_unsettled_reads_are_quarantined(model_dir: Path, how: str) -> None:
    decode = {"read_timeout_s": 0.3, "session_grace_s": 0.1} if how != "cancel" else {}
    if how == "deadline":
        decode = {}
    async with worker_pair(model_dir, decode=decode) as pair:
        held: list[InProcessPull] = []
        open_gate = False

        def gate(pull: InProcessPull) -> PullState:
            held.append(pull)
            return PullState.DONE if open_gate else PullState.PENDING

        pair.decode_transport.gate = gate
        deadline_s = 1.5 if how == "deadline" else 0.0
        request = work_request("r", prompt(100), deadline_s=deadline_s)
        reply = pair.router.submit(request, await _start(pair, request))
        await eventually(lambda: held)
        if how == "cancel":
            pair.router.cancel("r")
        elif how == "disconnect":
            await pair.router.disconnect()
        await eventually(lambda: pair.decode.report().stats.blocks_quarantined)
        if how != "disconnect":
            end = await pair.router.end_of(reply)
            expected = {
                "cancel": common_pb2.FINISH_REASON_CANCELLED,
                "deadline": common_pb2.FINISH_REASON_DEADLINE,
                "read_timeout": common_pb2.FINISH_REASON_ERROR,
            }
            assert end.finish_reason == expected[how]
        assert not reply.tokens
        assert pair.decode.report().stats.blocks_cached == 0
        open_gate = True
        await pair.decode_link.quiet()
        if how != "read_timeout":
            # The decode worker told the prefill worker that nobody wants it any more.
            await pair.prefill_link.quiet()


async def test_cancel_while_the_prefill_runs(model_dir: Path) -> None:
    request = work_request("r", prompt(600))
    async with worker_pair(model_dir) as pair:
        pair.prefill_pace.engine.delay_s = 0.2
        reply = pair.router.submit(request, await _start(pair, request))
        await eventually(lambda: pair.decode.report().stats.blocks_pinned)
        pair.router.cancel("r")
        assert (await pair.router.end_of(reply)).finish_reason == common_pb2.FINISH_REASON_CANCELLED
        await pair.quiet()
        assert pair.prefill.report().stats.prompt_tokens_total == 0


async def test_released_ticket_ends_the_handover(model_dir: Path) -> None:
    request = work_request("r", prompt(600))
    async with worker_pair(model_dir) as pair:
        pair.prefill_pace.engine.delay_s = 0.1
        ticket = await _start(pair, request)
        reply = pair.router.submit(request, ticket)
        await eventually(lambda: pair.decode.report().stats.blocks_pinned)
        await pair.prefill_link.prefill.Release(
            prefill_pb2.ReleaseRequest(ticket_id=ticket.ticket_id, incarnation=ticket.incarnation)
        )
        end = await pair.router.end_of(reply)
        assert "released by the router" in end.error.message
        await pair.quiet()


async def test_unknown_ticket_is_kv_lost(model_dir: Path) -> None:
    request = work_request("r", prompt(30))
    async with worker_pair(model_dir) as pair:
        ticket = await _start(pair, request)
        ticket.ticket_id = "another"
        end = await pair.router.end_of(pair.router.submit(request, ticket))
        assert end.error.kind == WorkError.KIND_KV_LOST
        assert not end.error.ticket_alive


async def test_ticket_for_another_context_is_refused(model_dir: Path) -> None:
    async with worker_pair(model_dir) as pair:
        ticket = await _start(pair, work_request("r", prompt(30)))
        end = await pair.router.end_of(pair.router.submit(work_request("r", prompt(31)), ticket))
        assert end.error.kind == WorkError.KIND_KV_LOST
        assert "covers 30 tokens" in end.error.message


@pytest.mark.parametrize(
    "difference", [{"model_name": "other"}, {"dtype": "bfloat16"}, {"block_size": 8, "num_blocks": 192}]
)
async def test_other_identity_is_refused_with_both_fingerprints(
    model_dir: Path, difference: dict[str, object]
) -> None:
    request = work_request("r", prompt(30))
    async with worker_pair(model_dir, decode=dict(difference)) as pair:
        ticket = await _start(pair, request)
        end = await pair.router.end_of(pair.router.submit(request, ticket))
        assert end.error.kind == WorkError.KIND_IDENTITY_MISMATCH
        assert ticket.fingerprint in end.error.message
        assert end.error.message.count("identities differ") == 1
        assert (await pair.decode_link.quiet()).blocks_cached == 0


async def _start(pair: Pair, request: object) -> prefill_pb2.KvTicket:
    return (await pair.prefill_link.prefill.Start(prefill_pb2.StartRequest(request=request))).ticket


async def _remote(pair: Pair, request: object) -> list[int]:
    return await pair.router.tokens_of(request, await _start(pair, request))


def _leases(pair: Pair) -> int:
    return int(pair.decode.report().stats.leases)


async def test_of_a_windowed_model_only_what_the_window_reaches_is_read(tmp_path: Path) -> None:
    folder = tiny_variety(tmp_path, "mistral")
    request = work_request("r1", prompt(150), max_tokens=60, trace=True)
    async with worker_pair(folder) as pair:
        ticket = await pair.prefill_link.start_prefill("r1", prompt(150), max_tokens=60)
        reply = pair.router.submit(request, ticket)
        end = await pair.router.end_of(reply)
        assert reply.tokens == aggregated_tokens(folder, request)
        # The next token, the 151st, attends to 23 before it: blocks 7, 8 and 9 of ten.
        assert WINDOW == 24
        assert end.timeline.transfer_bytes == 3 * pair.prefill_link.info.layout.block_bytes
        assert pair.prefill_link.info.identity.layer_groups[0].sliding_window == WINDOW
        await pair.quiet()


@pytest.mark.parametrize(
    ("variety", "full", "sliding"), [("gemma2", 1, 2), ("gemma3", 1, 1), ("qwen2 windows", 1, 2)]
)
async def test_each_layer_group_moves_what_its_window_reaches(
    variety: str, full: int, sliding: int, tmp_path: Path
) -> None:
    folder = tiny_variety(tmp_path, variety)
    request = work_request("r1", prompt(150), max_tokens=60, trace=True)
    room = {"num_blocks": 96 * (full + sliding)}
    async with worker_pair(folder, room, room) as pair:
        groups = pair.prefill_link.info.identity.layer_groups
        assert [group.sliding_window for group in groups] == [0] * full + [WINDOW] * sliding
        reply = pair.router.submit(request, await _start(pair, request))
        end = await pair.router.end_of(reply)
        assert reply.tokens == aggregated_tokens(folder, request)
        # All ten blocks of the full history; of the others blocks 7, 8 and 9, which the 151st token sees.
        moved = end.timeline.transfer_bytes // pair.prefill_link.info.layout.block_bytes
        assert moved == 10 * full + 3 * sliding
        # Most of it is here now: only the last pages come over.
        longer = work_request("r2", prompt(150) + prompt(20, seed=1), max_tokens=8, trace=True)
        reply = pair.router.submit(longer, await _start(pair, longer))
        end = await pair.router.end_of(reply)
        assert reply.tokens == aggregated_tokens(folder, longer)
        assert reply.cached_tokens == 144
        assert end.timeline.transfer_bytes == 2 * (full + sliding) * pair.prefill_link.info.layout.block_bytes
        await pair.quiet()
