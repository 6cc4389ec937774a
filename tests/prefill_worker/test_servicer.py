"""The Prefill service over real gRPC, a test in the decode worker's place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from kv_transfer.wire import identity_to_wire, layout_to_wire
from kvrelay.v1 import prefill_pb2
from prefill_worker.worker import PrefillWorker
from tests.support.aggregated import aggregated_tokens
from tests.support.requests import PREFILL_CHUNK, prompt, work_request
from tests.support.workers import LIMIT_S, Pace, WorkerLink, eventually, worker_config


class Follower:
    """A Follow stream in the hands of a test. Keeps what came; sends no heartbeat by itself."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.events: list[prefill_pb2.FollowEvent] = []
        self.error: grpc.aio.AioRpcError | None = None
        self.ended = asyncio.Event()

    async def attach(self, ticket: prefill_pb2.KvTicket, **changes: Any) -> Follower:
        assembly = self._bench.pace.assembly
        attach = prefill_pb2.Attach(
            ticket_id=ticket.ticket_id,
            worker_id="test",
            incarnation=1,
            identity=identity_to_wire(assembly.identity),
            layout=layout_to_wire(assembly.layout),
            transports=["in_process"],
        )
        for name, value in changes.items():
            target: Any = attach
            *path, last = name.split("__")
            for part in path:
                target = getattr(target, part)
            if isinstance(value, list):
                del getattr(target, last)[:]
                getattr(target, last).extend(value)
            else:
                setattr(target, last, value)
        self.call = self._bench.link.prefill.Follow()
        self._reader = asyncio.create_task(self._read())
        await self.send(attach=attach)
        return self

    async def send(self, **message: Any) -> None:
        await self.call.write(prefill_pb2.FollowRequest(**message))

    def of(self, kind: str) -> list[Any]:
        return [getattr(e, kind) for e in self.events if e.WhichOneof("message") == kind]

    async def wait_for(self, kind: str) -> Any:
        await eventually(lambda: self.of(kind) or self.ended.is_set())
        assert self.of(kind), f"the stream ended without {kind}: {self.error}"
        return self.of(kind)[-1]

    async def wait_end(self) -> grpc.aio.AioRpcError | None:
        async with asyncio.timeout(LIMIT_S):
            await self.ended.wait()
        return self.error

    async def break_off(self) -> None:
        self.call.cancel()
        await asyncio.wait({self._reader})

    async def validate(self, generation: int) -> bool:
        before = len(self.of("validated"))
        await self.send(validate=prefill_pb2.Validate(generation=generation))
        await eventually(lambda: len(self.of("validated")) > before)
        return bool(self.of("validated")[-1].valid)

    async def _read(self) -> None:
        try:
            async for event in self.call:
                self.events.append(event)
        except grpc.aio.AioRpcError as error:
            self.error = error
        except asyncio.CancelledError:
            pass
        self.ended.set()


class Bench:
    """One prefill worker and what a test needs of it."""

    def __init__(self) -> None:
        self.pace = Pace()
        self.worker: PrefillWorker
        self.link: WorkerLink

    async def follow(self, ticket: prefill_pb2.KvTicket, **changes: Any) -> Follower:
        return await Follower(self).attach(ticket, **changes)

    async def release(self, ticket: prefill_pb2.KvTicket, incarnation: int | None = None) -> None:
        request = prefill_pb2.ReleaseRequest(
            ticket_id=ticket.ticket_id, incarnation=ticket.incarnation if incarnation is None else incarnation
        )
        await self.link.prefill.Release(request)

    def leases(self) -> int:
        return int(self.worker.report().stats.leases)


@asynccontextmanager
async def bench(model_dir: Path, **overrides: Any) -> AsyncIterator[Bench]:
    one = Bench()
    one.worker = PrefillWorker(worker_config(model_dir, "prefill-0", **overrides), one.pace.build)
    try:
        one.link = WorkerLink(await one.worker.start())
        yield one
    finally:
        await one.worker.stop()
        await one.link.close()


async def _refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_ticket_comes_before_the_computation(model_dir: Path) -> None:
    async with bench(model_dir) as one:
        one.pace.engine.held = True
        ticket = await one.link.start_prefill("r", prompt(100))
        info = one.link.info
        assert (ticket.worker_id, ticket.incarnation) == (info.worker_id, info.incarnation)
        assert ticket.endpoint == info.endpoint
        assert ticket.num_tokens == 100
        assert ticket.layout == info.layout
        follower = await one.follow(ticket)
        attached = await follower.wait_for("attached")
        assert attached.generation == 1
        assert attached.identity == info.identity
        assert attached.pid == info.pid
        assert not follower.of("kv_ready")
        one.pace.engine.held = False
        await follower.wait_for("finished")
        await follower.send(done=prefill_pb2.Done(generation=1))
        assert await follower.wait_end() is None
        await one.link.quiet()


async def test_progress_is_told_as_it_is_made(model_dir: Path) -> None:
    request = work_request("r", prompt(100), max_tokens=1)
    async with bench(model_dir) as one:
        one.pace.engine.held = True
        follower = await one.follow(await one.link.start_prefill("r", prompt(100)))
        await follower.wait_for("attached")
        one.pace.engine.held = False
        finished = await follower.wait_for("finished")
        ready = follower.of("kv_ready")
        assert [event.num_tokens for event in ready] == [PREFILL_CHUNK, 2 * PREFILL_CHUNK, 96, 100]
        blocks = [block for event in ready for block in event.block_ids]
        assert len(blocks) == len(set(blocks)) == 7
        assert 0 not in blocks
        assert [finished.first_token_id] == aggregated_tokens(model_dir, request)
        assert follower.events.index(prefill_pb2.FollowEvent(finished=finished)) > follower.events.index(
            prefill_pb2.FollowEvent(kv_ready=ready[-1])
        )


async def test_reattach_hears_everything_in_one_message_under_a_new_generation(model_dir: Path) -> None:
    async with bench(model_dir) as one:
        ticket = await one.link.start_prefill("r", prompt(100))
        first = await one.follow(ticket)
        await first.wait_for("finished")
        told = [block for event in first.of("kv_ready") for block in event.block_ids]
        await first.break_off()
        second = await one.follow(ticket)
        assert (await second.wait_for("attached")).generation == 2
        finished = await second.wait_for("finished")
        assert finished == first.of("finished")[0]
        (ready,) = second.of("kv_ready")
        assert list(ready.block_ids) == told
        assert ready.num_tokens == 100
        assert await second.validate(2)
        assert not await second.validate(1)
        # One prompt was computed, once.
        assert one.worker.report().stats.prompt_tokens_total == 100
        await second.send(done=prefill_pb2.Done(generation=1))
        assert await second.validate(2), "Done of another generation has no effect"
        await second.send(done=prefill_pb2.Done(generation=2))
        await second.wait_end()
        await one.link.quiet()


async def test_a_new_follower_takes_the_lease_from_the_old(model_dir: Path) -> None:
    async with bench(model_dir) as one:
        ticket = await one.link.start_prefill("r", prompt(40))
        old = await one.follow(ticket)
        await old.wait_for("attached")
        new = await one.follow(ticket)
        assert (await new.wait_for("attached")).generation == 2
        await old.wait_end()
        assert await new.validate(2)


async def test_abandon_stops_the_prefill_at_its_next_step(model_dir: Path) -> None:
    async with bench(model_dir) as one:
        one.pace.engine.delay_s = 0.1
        follower = await one.follow(await one.link.start_prefill("r", prompt(900)))
        await follower.wait_for("kv_ready")
        await follower.send(abandon=prefill_pb2.Abandon(reason="test"))
        assert await follower.wait_end() is None
        assert not follower.of("finished")
        await one.link.quiet()
        assert one.worker.report().stats.prompt_tokens_total == 0


@pytest.mark.parametrize("state", ["queued", "prefilling", "finished"])
async def test_release_ends_a_ticket(model_dir: Path, state: str) -> None:
    async with bench(model_dir) as one:
        one.pace.engine.held = state == "queued"
        one.pace.engine.delay_s = 0.1 if state == "prefilling" else 0.0
        ticket = await one.link.start_prefill("r", prompt(600))
        if state == "prefilling":
            await eventually(lambda: one.worker.report().stats.blocks_pinned)
        elif state == "finished":
            await eventually(lambda: one.worker.report().stats.prompt_tokens_total)
        await one.release(ticket, incarnation=ticket.incarnation + 1)
        assert one.leases() == 1, "another incarnation's ticket"
        await one.release(ticket)
        one.pace.engine.held = False
        await one.link.quiet()
        await one.release(ticket)


async def test_a_follower_hears_of_the_release(model_dir: Path) -> None:
    async with bench(model_dir) as one:
        ticket = await one.link.start_prefill("r", prompt(40))
        follower = await one.follow(ticket)
        await follower.wait_for("finished")
        await one.release(ticket)
        assert not (await follower.wait_for("revoked")).retryable
        await follower.wait_end()
        await one.link.quiet()


async def test_a_ticket_that_nobody_follows_expires(model_dir: Path) -> None:
    async with bench(model_dir, ticket_ttl_s=0.3) as one:
        ticket = await one.link.start_prefill("r", prompt(40))
        await one.link.quiet()
        error = await (await one.follow(ticket)).wait_end()
        assert error is not None
        assert error.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("how", ["breaks", "half-closes", "falls silent"])
async def test_a_lost_follower_leaves_the_ticket_for_the_grace_time(model_dir: Path, how: str) -> None:
    overrides = {"heartbeat_timeout_s": 0.5} if how == "falls silent" else {}
    async with bench(model_dir, reattach_grace_s=0.4, **overrides) as one:
        follower = await one.follow(await one.link.start_prefill("r", prompt(40)))
        await follower.wait_for("finished")
        assert one.worker.report().stats.blocks_pinned == 3
        if how == "breaks":
            await follower.break_off()
        elif how == "half-closes":
            await follower.call.done_writing()
        await follower.wait_end()
        assert follower.error is None
        await one.link.quiet()


async def test_heartbeats_keep_the_lease(model_dir: Path) -> None:
    async with bench(model_dir, heartbeat_timeout_s=1.0, heartbeat_s=0.1) as one:
        follower = await one.follow(await one.link.start_prefill("r", prompt(40)))
        await follower.wait_for("finished")
        for _ in range(20):
            await asyncio.sleep(0.1)
            await follower.send(heartbeat=prefill_pb2.Heartbeat())
        assert await follower.validate(1)
        assert follower.of("heartbeat")


@pytest.mark.parametrize("followed", [False, True])
async def test_a_deadline_ends_the_prefill(model_dir: Path, followed: bool) -> None:
    async with bench(model_dir) as one:
        one.pace.engine.delay_s = 0.1
        ticket = await one.link.start_prefill("r", prompt(900), deadline_s=0.3)
        if followed:
            follower = await one.follow(ticket)
            assert "deadline" in (await follower.wait_for("revoked")).reason
        await one.link.quiet()
        assert one.worker.report().stats.prompt_tokens_total == 0


async def test_admission(model_dir: Path) -> None:
    async with bench(model_dir, max_queue=1) as one:
        start = one.link.start_prefill
        assert await _refused(start("big", prompt(1024))) == grpc.StatusCode.INVALID_ARGUMENT
        assert await _refused(start("empty", [])) == grpc.StatusCode.INVALID_ARGUMENT
        ticket = await start("r", prompt(40), attempt=2)
        assert await _refused(start("other", prompt(40))) == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await start("r", prompt(40), attempt=2) == ticket
        await one.release(ticket)
        assert await _refused(start("r", prompt(40), attempt=1)) == grpc.StatusCode.FAILED_PRECONDITION
        await one.link.quiet()
        draining = asyncio.create_task(one.worker.drain(LIMIT_S))
        assert await draining == 0
        assert await _refused(start("late", prompt(40))) == grpc.StatusCode.UNAVAILABLE


async def test_a_later_attempt_takes_the_place_of_the_one_before(model_dir: Path) -> None:
    async with bench(model_dir, max_queue=1) as one:
        one.pace.engine.delay_s = 0.05
        follower = await one.follow(await one.link.start_prefill("r", prompt(600), attempt=1))
        await follower.wait_for("kv_ready")
        later = await one.link.start_prefill("r", prompt(600), attempt=2)
        assert "attempt 2" in (await follower.wait_for("revoked")).reason
        second = await one.follow(later)
        await second.wait_for("finished")
        await second.send(done=prefill_pb2.Done(generation=1))
        await one.link.quiet()


async def test_a_request_that_the_engine_refuses_is_revoked_for_good(model_dir: Path) -> None:
    async with bench(model_dir) as one:
        one.pace.engine.held = True
        follower = await one.follow(await one.link.start_prefill("r", prompt(40)))
        await follower.wait_for("attached")
        one.pace.engine.held = False
        await follower.wait_for("finished")
        refused = await one.link.start_prefill("bad", [70000])
        await eventually(lambda: one.leases() == 1)
        error = await (await one.follow(refused)).wait_end()
        assert error is not None
        assert error.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"identity__model": "other"}, ("local", "remote", "model")),
        ({"identity__dtype": "bfloat16"}, ("dtype",)),
        ({"layout__num_heads": 1}, ("num_heads",)),
        ({"transports": ["pigeon"]}, ("pigeon", "in_process")),
    ],
)
async def test_a_peer_that_does_not_fit_is_refused(
    model_dir: Path, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    async with bench(model_dir) as one:
        ticket = await one.link.start_prefill("r", prompt(40))
        error = await (await one.follow(ticket, **changes)).wait_end()
        assert error is not None
        assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert all(word in (error.details() or "") for word in words)
        if "identity__model" in changes:
            assert ticket.fingerprint in (error.details() or "")
        # It was never followed: another may come.
        assert (await (await one.follow(ticket)).wait_for("attached")).generation == 1


async def test_the_first_message_must_be_attach(model_dir: Path) -> None:
    async with bench(model_dir) as one:
        call = one.link.prefill.Follow()
        await call.write(prefill_pb2.FollowRequest(heartbeat=prefill_pb2.Heartbeat()))
        assert await _refused(call.read()) == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_dead_engine_revokes_every_ticket(model_dir: Path) -> None:
    async with bench(model_dir) as one:
        one.pace.engine.delay_s = 0.05
        follower = await one.follow(await one.link.start_prefill("r", prompt(600)))
        await follower.wait_for("kv_ready")
        one.pace.engine.broken = True
        revoked = await follower.wait_for("revoked")
        assert revoked.retryable
        assert "the test broke the engine" in revoked.reason
        assert "broke" in str(await one.worker.failed)
        assert await _refused(one.link.start_prefill("r2", prompt(4))) == grpc.StatusCode.UNAVAILABLE
