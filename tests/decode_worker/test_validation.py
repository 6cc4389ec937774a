"""Rule 3 of the handover: nothing that was read is used without a yes. The prefill worker is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from kv_transfer.transports.base import PullState
from kv_transfer.transports.in_process import InProcessPull
from kv_transfer.wire import identity_to_wire, layout_to_wire
from kvrelay.v1 import decode_pb2, prefill_pb2, prefill_pb2_grpc
from tests.support.aggregated import aggregated_tokens
from tests.support.pair import Pair, worker_pair
from tests.support.requests import prompt, work_request
from tests.support.workers import eventually

WorkError = decode_pb2.WorkError
NUM_TOKENS = 40


class ScriptedPrefill(prefill_pb2_grpc.PrefillServicer):
    """Offers three real blocks of a real pool at once; what it says to Validate is up to the test."""

    def __init__(self, pair: Pair, answer: str, first_token_id: int = 5) -> None:
        self._pair = pair
        self._answer = answer
        self._first_token_id = first_token_id
        self.heard: list[str] = []

    async def Follow(  # noqa: N802
        self, requests: AsyncIterator[prefill_pb2.FollowRequest], context: object
    ) -> AsyncIterator[prefill_pb2.FollowEvent]:
        assembly = self._pair.prefill_pace.assembly
        yield prefill_pb2.FollowEvent(
            attached=prefill_pb2.Attached(
                generation=7,
                identity=identity_to_wire(assembly.identity),
                layout=layout_to_wire(assembly.layout),
                transport="in_process",
                pool=assembly.transports["in_process"].export(),
            )
        )
        ready = prefill_pb2.KvReady(num_tokens=NUM_TOKENS, block_ids=[1, 2, 3])
        yield prefill_pb2.FollowEvent(kv_ready=ready)
        yield prefill_pb2.FollowEvent(finished=prefill_pb2.Finished(first_token_id=self._first_token_id))
        async for request in requests:
            kind = request.WhichOneof("message")
            self.heard.append(kind)
            if kind == "heartbeat":
                yield prefill_pb2.FollowEvent(heartbeat=prefill_pb2.Heartbeat())
            if kind == "validate":
                assert request.validate.generation == 7
                match self._answer:
                    case "closes":
                        return
                    case "aborts":
                        await context.abort(grpc.StatusCode.UNAVAILABLE, "test")
                    case "yes" | "no":
                        valid = self._answer == "yes"
                        validated = prefill_pb2.Validated(generation=7, valid=valid)
                        yield prefill_pb2.FollowEvent(validated=validated)
                    case "yes to another":
                        validated = prefill_pb2.Validated(generation=6, valid=True)
                        yield prefill_pb2.FollowEvent(validated=validated)


@asynccontextmanager
async def scripted_ticket(pair: Pair, scripted: ScriptedPrefill) -> AsyncIterator[prefill_pb2.KvTicket]:
    """Serves the scripted worker; yields a ticket of it."""
    server = grpc.aio.server()
    prefill_pb2_grpc.add_PrefillServicer_to_server(scripted, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield prefill_pb2.KvTicket(
        ticket_id="t",
        worker_id="scripted",
        endpoint=f"127.0.0.1:{port}",
        num_tokens=NUM_TOKENS,
        layout=pair.prefill_link.info.layout,
    )
    await server.stop(None)


@pytest.mark.parametrize(
    "answer", ["yes", "no", "yes to another", "nothing but heartbeats", "closes", "aborts"]
)
async def test_only_a_yes_lets_the_bytes_be_used(model_dir: Path, answer: str) -> None:
    async with (
        worker_pair(model_dir, decode={"heartbeat_timeout_s": 1.0}) as pair,
        scripted_ticket(pair, scripted := ScriptedPrefill(pair, answer)) as ticket,
    ):
        reply = pair.router.submit(work_request("r", prompt(NUM_TOKENS), max_tokens=3), ticket)
        end = await pair.router.end_of(reply)
        assert "validate" in scripted.heard
        stats = await pair.decode_link.quiet()
        if answer == "yes":
            assert len(reply.tokens) == 3
            assert reply.tokens[0] == 5
            assert stats.blocks_cached == 2
            await eventually(lambda: "done" in scripted.heard)
        else:
            assert end.error.kind == WorkError.KIND_KV_LOST
            assert not end.error.ticket_alive
            assert not reply.tokens
            assert stats.blocks_cached == 0, "published before a yes"
            assert "done" not in scripted.heard


async def test_a_first_token_that_does_not_exist_is_lost_kv_not_a_bad_request(model_dir: Path) -> None:
    async with (
        worker_pair(model_dir) as pair,
        scripted_ticket(pair, ScriptedPrefill(pair, "yes", first_token_id=1_000_000)) as ticket,
    ):
        end = await pair.router.end_of(
            pair.router.submit(work_request("r", prompt(NUM_TOKENS), max_tokens=3), ticket)
        )
        assert end.error.kind == WorkError.KIND_KV_LOST
        assert (await pair.decode_link.quiet()).blocks_cached == 0


async def test_a_lease_taken_over_by_another_is_lost(model_dir: Path) -> None:
    """Two decode workers on one ticket: the second has it, the first throws its bytes away."""
    request = work_request("r", prompt(100))
    async with worker_pair(model_dir) as pair, worker_pair(model_dir) as other:
        open_gate = asyncio.Event()
        pair.decode_transport.gate = lambda _: PullState.DONE if open_gate.is_set() else PullState.PENDING
        ticket = (await pair.prefill_link.prefill.Start(prefill_pb2.StartRequest(request=request))).ticket
        first = pair.router.submit(request, ticket)
        await eventually(lambda: pair.decode.report().stats.blocks_pinned)
        again = work_request("r", prompt(100), attempt=2)
        assert await other.router.tokens_of(again, ticket) == aggregated_tokens(model_dir, request)
        end = await pair.router.end_of(first)
        assert end.error.kind == WorkError.KIND_KV_LOST
        open_gate.set()
        assert (await pair.decode_link.quiet()).blocks_cached == 0
        await pair.prefill_link.quiet()
        await other.quiet()


async def test_a_pool_mostly_in_quarantine_takes_no_more_and_asks_for_a_restart(model_dir: Path) -> None:
    decode = {"num_blocks": 16, "max_model_len": 256, "read_chunk_blocks": 16}
    async with worker_pair(model_dir, decode=decode) as pair:
        held: list[InProcessPull] = []

        def hold(pull: InProcessPull) -> PullState:
            held.append(pull)
            return PullState.PENDING

        pair.decode_transport.gate = hold
        request = work_request("r", prompt(250))
        ticket = (await pair.prefill_link.prefill.Start(prefill_pb2.StartRequest(request=request))).ticket
        # All is ready before the decode worker comes, so that it reads it all at once.
        await eventually(lambda: pair.prefill.report().stats.prompt_tokens_total)
        reply = pair.router.submit(request, ticket)
        await eventually(lambda: held)
        pair.router.cancel("r")
        await pair.router.end_of(reply)
        await eventually(lambda: pair.decode.report().draining)
        refused = await pair.router.end_of(pair.router.submit(work_request("late", prompt(5))))
        assert refused.error.kind == WorkError.KIND_OVERLOADED
        assert "quarantine" in refused.error.message
        await eventually(pair.decode.failed.done)
        assert "quarantine" in str(pair.decode.failed.result())
        pair.decode_transport.gate = lambda _: PullState.DONE
        await pair.decode_link.quiet()


async def test_preempted_after_the_handover_gives_the_same_answer(model_dir: Path) -> None:
    """When blocks run out D goes on by itself: from swapped KV, or computed anew without P."""
    requests = [work_request(f"r{n}", prompt(60, seed=n), max_tokens=90) for n in range(4)]
    async with worker_pair(model_dir, decode={"num_blocks": 22, "max_model_len": 192}) as pair:
        pair.decode_pace.engine.delay_s = 0.005

        async def run(request: object) -> list[int]:
            start = prefill_pb2.StartRequest(request=request)
            ticket = (await pair.prefill_link.prefill.Start(start)).ticket
            return await pair.router.tokens_of(request, ticket)

        answers = await asyncio.gather(*(run(request) for request in requests))
        assert answers == [aggregated_tokens(model_dir, request) for request in requests]
        stats = pair.decode.report().stats
        assert stats.preemptions_total >= stats.swaps_total > 0
        assert stats.swapped_out_blocks_total >= stats.swapped_in_blocks_total > 0
        assert (stats.swap_blocks_used, stats.swap_blocks_total > 0) == (0, True)
        await pair.quiet()
