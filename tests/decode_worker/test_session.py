"""What routers may do to their streams, and what becomes of their requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from kvrelay.v1 import common_pb2, decode_pb2, decode_pb2_grpc, prefill_pb2
from tests.support.aggregated import aggregated_tokens
from tests.support.pair import Pair, worker_pair
from tests.support.requests import prompt, work_request
from tests.support.router_client import RouterClient
from tests.support.workers import eventually

WorkError = decode_pb2.WorkError


async def test_a_router_that_comes_back_gets_every_token(model_dir: Path) -> None:
    requests = [work_request(f"r{n}", prompt(30, seed=n), max_tokens=60) for n in range(3)]
    async with worker_pair(model_dir) as pair:
        pair.decode_pace.engine.delay_s = 0.01
        replies = [pair.router.submit(request) for request in requests]
        await eventually(lambda: all(reply.tokens for reply in replies))
        for _ in range(3):
            await pair.router.disconnect()
            pair.router.connect()
            await asyncio.sleep(0.05)
        for reply, request in zip(replies, requests, strict=True):
            await pair.router.end_of(reply)
            assert reply.tokens == aggregated_tokens(model_dir, request)
        await pair.quiet()


async def test_an_end_that_fell_into_the_break_is_sent_again(model_dir: Path) -> None:
    request = work_request("r", prompt(30), max_tokens=5)
    async with worker_pair(model_dir) as pair:
        reply = pair.router.submit(request)
        await eventually(lambda: pair.decode.report().stats.running or reply.end)
        await pair.router.disconnect()
        seen = len(reply.tokens)
        await pair.decode_link.quiet()
        assert len(reply.tokens) == seen
        pair.router.connect()
        end = await pair.router.end_of(reply)
        assert end.finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert reply.tokens == aggregated_tokens(model_dir, request)


async def test_requests_of_a_lost_router_are_abandoned(model_dir: Path) -> None:
    async with worker_pair(model_dir, decode={"session_grace_s": 0.2}) as pair:
        pair.decode_pace.engine.delay_s = 0.02
        pair.prefill_pace.engine.delay_s = 0.1
        decoding = pair.router.submit(work_request("decoding", prompt(30), max_tokens=500))
        await eventually(lambda: decoding.tokens)
        taken_over = work_request("taken-over", prompt(500))
        pair.router.submit(taken_over, await _start(pair, taken_over))
        await eventually(lambda: pair.decode.report().stats.leases)
        await pair.router.disconnect()
        await pair.quiet()
        assert pair.decode.report().stats.generated_tokens_total < 500


async def test_a_silent_router_is_lost(model_dir: Path) -> None:
    config = {"session_grace_s": 0.1, "heartbeat_timeout_s": 0.6}
    async with worker_pair(model_dir, decode=config) as pair:
        pair.decode_pace.engine.delay_s = 0.02
        reply = pair.router.submit(work_request("r", prompt(30), max_tokens=900))
        await eventually(lambda: reply.tokens)
        pair.router.silent = True
        await pair.decode_link.quiet()
        await eventually(pair.router.broken.is_set)
        assert len(reply.tokens) < 900


async def test_a_newer_stream_takes_the_session_over(model_dir: Path) -> None:
    request = work_request("r", prompt(30), max_tokens=80)
    async with worker_pair(model_dir) as pair:
        pair.decode_pace.engine.delay_s = 0.01
        old = pair.router.submit(request)
        await eventually(lambda: old.tokens)
        async with RouterClient(pair.decode_link.info.endpoint, pair.router.router_id) as second:
            # It says Hello only: what it knows of the request is kept from before.
            second.replies["r", 1] = reply = type(old)(first_index=0)
            await second.end_of(reply)
            assert reply.tokens == aggregated_tokens(model_dir, request)
            await eventually(pair.router.broken.is_set)


async def test_what_a_slow_router_does_not_read_is_joined(model_dir: Path) -> None:
    request = work_request("r", prompt(30), max_tokens=400)
    async with worker_pair(model_dir) as pair:
        pair.router.hearing.clear()
        reply = pair.router.submit(request)
        await pair.decode_link.report()
        await eventually(lambda: pair.decode.report().stats.generated_tokens_total == 400)
        pair.router.hearing.set()
        await pair.router.end_of(reply)
        assert reply.tokens == aggregated_tokens(model_dir, request)


async def test_attempts(model_dir: Path) -> None:
    async with worker_pair(model_dir) as pair:
        pair.decode_pace.engine.delay_s = 0.02
        first = pair.router.submit(work_request("r", prompt(30), attempt=2, max_tokens=200))
        await eventually(lambda: first.tokens)
        stale = pair.router.submit(work_request("r", prompt(30), attempt=1))
        end = await pair.router.end_of(stale)
        assert end.error.kind == WorkError.KIND_INVALID
        assert "attempt 1 comes after attempt 2" in end.error.message
        assert not first.end

        pair.router.cancel("r", attempt=1)
        later_request = work_request("r", prompt(30), attempt=3, max_tokens=5)
        later = pair.router.submit(later_request)
        await pair.router.end_of(later)
        assert later.tokens == aggregated_tokens(model_dir, later_request)
        assert (await pair.router.end_of(first)).finish_reason == common_pb2.FINISH_REASON_CANCELLED
        await pair.decode_link.quiet()


async def test_a_later_attempt_needs_no_second_place(model_dir: Path) -> None:
    async with worker_pair(model_dir, decode={"max_queue": 1}) as pair:
        pair.decode_pace.engine.delay_s = 0.02
        first = pair.router.submit(work_request("r", prompt(30), max_tokens=200))
        await eventually(lambda: first.tokens)
        later = pair.router.submit(work_request("r", prompt(30), attempt=2, max_tokens=3))
        assert (await pair.router.end_of(later)).finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert (await pair.router.end_of(first)).finish_reason == common_pb2.FINISH_REASON_CANCELLED


async def test_the_same_attempt_twice_runs_once(model_dir: Path) -> None:
    request = work_request("r", prompt(30), max_tokens=30)
    async with worker_pair(model_dir) as pair:
        pair.decode_pace.engine.delay_s = 0.02
        reply = pair.router.submit(request)
        await eventually(lambda: reply.tokens)
        pair.router.submit(request)
        pair.router.replies["r", 1] = reply
        await pair.router.end_of(reply)
        await pair.decode_link.quiet()
        assert reply.tokens == aggregated_tokens(model_dir, request)
        assert pair.decode.report().stats.generated_tokens_total == 30


async def test_cancel_and_deadline_end_a_running_request(model_dir: Path) -> None:
    async with worker_pair(model_dir) as pair:
        pair.decode_pace.engine.delay_s = 0.02
        cancelled = pair.router.submit(work_request("c", prompt(30), max_tokens=900))
        expired = pair.router.submit(work_request("d", prompt(30, seed=1), max_tokens=900, deadline_s=0.7))
        await eventually(lambda: cancelled.tokens)
        pair.router.cancel("c")
        pair.router.cancel("unknown")
        end = await pair.router.end_of(cancelled)
        assert end.finish_reason == common_pb2.FINISH_REASON_CANCELLED
        end = await pair.router.end_of(expired)
        assert end.finish_reason == common_pb2.FINISH_REASON_DEADLINE
        await pair.decode_link.quiet()


async def test_a_full_or_draining_worker_refuses(model_dir: Path) -> None:
    async with worker_pair(model_dir, decode={"max_queue": 1}) as pair:
        pair.decode_pace.engine.delay_s = 0.02
        running = pair.router.submit(work_request("r", prompt(30), max_tokens=60))
        await eventually(lambda: running.tokens)
        ticket = await pair.prefill_link.start_prefill("full", prompt(30))
        end = await pair.router.end_of(pair.router.submit(work_request("full", prompt(30)), ticket))
        assert end.error.kind == WorkError.KIND_OVERLOADED
        assert end.error.ticket_alive
        draining = asyncio.create_task(pair.decode.drain(60.0))
        await eventually(lambda: pair.decode.report().draining)
        end = await pair.router.end_of(pair.router.submit(work_request("late", prompt(30))))
        assert end.error.kind == WorkError.KIND_OVERLOADED
        assert "draining" in end.error.message
        assert await draining == 0
        await pair.router.end_of(running)
        assert len(running.tokens) == 60


@pytest.mark.parametrize(
    ("tokens", "overrides", "message"),
    [
        ([], {}, "the prompt is empty"),
        (prompt(1024), {}, "1024 context tokens"),
        ([5, 70000], {}, "token ids must be"),
        ([5], {"max_tokens": 0}, "max_tokens is 0"),
    ],
)
async def test_impossible_requests(
    model_dir: Path, tokens: list[int], overrides: dict[str, int], message: str
) -> None:
    async with worker_pair(model_dir) as pair:
        end = await pair.router.end_of(pair.router.submit(work_request("r", tokens, **overrides)))
        assert end.error.kind == WorkError.KIND_INVALID
        assert message in end.error.message
        await pair.decode_link.quiet()


async def test_a_ticket_without_an_endpoint_is_invalid(model_dir: Path) -> None:
    async with worker_pair(model_dir) as pair:
        ticket = prefill_pb2.KvTicket(ticket_id="t")
        end = await pair.router.end_of(pair.router.submit(work_request("r", prompt(3)), ticket))
        assert end.error.kind == WorkError.KIND_INVALID


async def test_the_first_command_must_be_hello(model_dir: Path) -> None:
    async with worker_pair(model_dir) as pair:
        call = decode_pb2_grpc.DecodeStub(pair.decode_link.channel).Session()
        await call.write(decode_pb2.DecodeCommand(heartbeat=prefill_pb2.Heartbeat()))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_dead_engine_ends_every_request_and_says_so(model_dir: Path) -> None:
    async with worker_pair(model_dir) as pair:
        pair.decode_pace.engine.delay_s = 0.02
        pair.prefill_pace.engine.delay_s = 0.1
        decoding = pair.router.submit(work_request("r", prompt(30), max_tokens=900))
        await eventually(lambda: decoding.tokens)
        request = work_request("h", prompt(500))
        ticket = await _start(pair, request)
        handed = pair.router.submit(request, ticket)
        await eventually(lambda: pair.decode.report().stats.leases)
        pair.decode_pace.engine.broken = True
        for reply, alive in ((decoding, False), (handed, True)):
            end = await pair.router.end_of(reply)
            assert "the test broke the engine" in end.error.message
            assert end.error.ticket_alive is alive
        assert "broke" in str(await pair.decode.failed)
        assert pair.decode.report().draining
        await pair.prefill_link.prefill.Release(
            prefill_pb2.ReleaseRequest(ticket_id=ticket.ticket_id, incarnation=ticket.incarnation)
        )
        await pair.prefill_link.quiet()


async def _start(pair: Pair, request: object) -> prefill_pb2.KvTicket:
    return (await pair.prefill_link.prefill.Start(prefill_pb2.StartRequest(request=request))).ticket
