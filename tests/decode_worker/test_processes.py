"""Workers in processes of their own over NIXL, and what happens when one of them dies or hangs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest_asyncio

from kvrelay.v1 import decode_pb2, prefill_pb2
from tests.support.aggregated import aggregated_tokens
from tests.support.requests import prompt, work_request
from tests.support.router_client import RouterClient
from tests.support.tiny_families import tiny_variety
from tests.support.workers import WorkerLink, WorkerProcess, eventually, worker_config

WorkError = decode_pb2.WorkError


class Lab:
    """Starts worker processes and ends all that are left."""

    def __init__(self, model_dir: Path, stack: AsyncExitStack) -> None:
        self._model_dir = model_dir
        self._stack = stack

    async def spawn(self, *workers: tuple[str, str, dict[str, Any]]) -> list[WorkerProcess]:
        """Workers as (role, id, overrides), started side by side. `delay_s` slows their steps down."""
        return list(await asyncio.gather(*(self._spawn(*worker) for worker in workers)))

    async def _spawn(self, role: str, worker_id: str, overrides: dict[str, Any]) -> WorkerProcess:
        delay_s = overrides.pop("delay_s", 0.0)
        ucx_tls = overrides.pop("ucx_tls", "tcp,cma")
        config = worker_config(self._model_dir, worker_id, **{"transports": ("nixl",), **overrides})
        process = await WorkerProcess.spawn(role, config, delay_s, ucx_tls)
        self._stack.push_async_callback(process.stop)
        return process

    async def router(self, decode: WorkerProcess) -> RouterClient:
        return await self._stack.enter_async_context(RouterClient(decode.info.endpoint))


@pytest_asyncio.fixture
async def lab(model_dir: Path) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab(model_dir, stack)


async def _start(link: WorkerLink, request: object) -> prefill_pb2.KvTicket:
    return (await link.prefill.Start(prefill_pb2.StartRequest(request=request))).ticket


async def test_kv_travels_between_processes_while_it_is_computed(model_dir: Path, lab: Lab) -> None:
    request = work_request("r", prompt(500), trace=True)
    prefill, decode = await lab.spawn(("prefill", "p", {"delay_s": 0.05}), ("decode", "d", {}))
    router = await lab.router(decode)
    reply = router.submit(request, await _start(prefill.link, request))
    end = await router.end_of(reply)
    assert reply.tokens == aggregated_tokens(model_dir, request)
    assert end.timeline.transport == "nixl"
    assert end.timeline.transfer_bytes == 32 * prefill.info.layout.block_bytes
    chunks = [span for span in end.timeline.spans if span.name == "prefill_chunk"]
    reads = [span for span in end.timeline.spans if span.name == "transfer"]
    assert {span.pid for span in chunks} == {prefill.info.pid}
    assert {span.pid for span in reads} == {decode.info.pid}
    assert min(read.start_unix_ns for read in reads) < max(chunk.end_unix_ns for chunk in chunks)
    await prefill.link.quiet()
    await decode.link.quiet()


async def test_layer_groups_travel_between_processes(tmp_path: Path) -> None:
    """Over NIXL, with a window that is let go under the ticket while the prompt is still being computed."""
    folder = tiny_variety(tmp_path, "gemma3")
    request = work_request("r", prompt(500), max_tokens=40, trace=True)
    room: dict[str, Any] = {"num_blocks": 192}
    async with AsyncExitStack() as stack:
        lab = Lab(folder, stack)
        prefill, decode = await lab.spawn(
            ("prefill", "p", {"delay_s": 0.05, **room}), ("decode", "d", dict(room))
        )
        router = await lab.router(decode)
        reply = router.submit(request, await _start(prefill.link, request))
        held = await prefill.link.until(lambda stats: 0 < stats.blocks_pinned < 2 * 32 - 10)
        end = await router.end_of(reply)
        assert reply.tokens == aggregated_tokens(folder, request)
        assert held.leases == 1
        # 32 pages of the full history; of the other the last three, which the 501st token sees.
        assert end.timeline.transfer_bytes == (32 + 3) * prefill.info.layout.block_bytes
        await prefill.link.quiet()
        await decode.link.quiet()


async def test_prefill_worker_killed_in_the_middle(model_dir: Path, lab: Lab) -> None:
    request = work_request("r", prompt(600))
    killed, other, decode = await lab.spawn(
        ("prefill", "p0", {"delay_s": 0.2}), ("prefill", "p1", {}), ("decode", "d", {})
    )
    router = await lab.router(decode)
    reply = router.submit(request, await _start(killed.link, request))
    await decode.link.until(lambda stats: stats.blocks_pinned)
    await killed.kill()
    end = await router.end_of(reply)
    assert end.error.kind == WorkError.KIND_KV_LOST
    assert not end.error.ticket_alive
    assert not reply.tokens
    assert (await decode.link.quiet()).blocks_cached == 0

    again = work_request("r", prompt(600), attempt=2)
    tokens = await router.tokens_of(again, await _start(other.link, again))
    assert tokens == aggregated_tokens(model_dir, request)
    await other.link.quiet()
    await decode.link.quiet()


async def test_prefill_worker_stopped_in_the_middle(model_dir: Path, lab: Lab) -> None:
    """SIGSTOP: no heartbeat, so the lease is lost; SIGKILL by the supervisor settles what was being read."""
    request = work_request("r", prompt(600))
    bystander = work_request("bystander", prompt(30, seed=9), max_tokens=200)
    # Computed first: while this event loop computes, the router in it is as silent as the stopped worker.
    expected, expected_of_bystander = (aggregated_tokens(model_dir, each) for each in (request, bystander))
    overrides = {"heartbeat_timeout_s": 3.0, "read_timeout_s": 60.0}
    stopped, other, decode = await lab.spawn(
        ("prefill", "p0", {"delay_s": 0.2}), ("prefill", "p1", {}), ("decode", "d", overrides)
    )
    router = await lab.router(decode)
    # Another request of the same decode worker goes on.
    going_on = router.submit(bystander)
    reply = router.submit(request, await _start(stopped.link, request))
    await decode.link.until(lambda stats: stats.blocks_pinned > 3)
    stopped.signal(signal.SIGSTOP)
    end = await router.end_of(reply)
    assert end.error.kind == WorkError.KIND_KV_LOST
    assert not end.error.ticket_alive
    await router.end_of(going_on)
    assert going_on.tokens == expected_of_bystander

    again = work_request("r", prompt(600), attempt=2)
    tokens = await router.tokens_of(again, await _start(other.link, again))
    assert tokens == expected
    await stopped.kill()
    await decode.link.quiet()
    await other.link.quiet()


async def test_reads_from_a_stopped_process_stay_in_quarantine_until_it_dies(
    model_dir: Path, lab: Lab
) -> None:
    request = work_request("r", prompt(600))
    patient = {"ucx_tls": "tcp", "heartbeat_timeout_s": 60.0}
    stopped, decode = await lab.spawn(
        ("prefill", "p", {"delay_s": 0.1, **patient}),
        ("decode", "d", {"ucx_tls": "tcp", "heartbeat_timeout_s": 1.5, "session_grace_s": 60.0}),
    )
    router = await lab.router(decode)
    reply = router.submit(request, await _start(stopped.link, request))
    await decode.link.until(lambda stats: stats.blocks_pinned)
    # While D stands still P becomes ready with the rest; then P stands still, and D reads from it.
    decode.signal(signal.SIGSTOP)
    await stopped.link.until(lambda stats: stats.prompt_tokens_total)
    stopped.signal(signal.SIGSTOP)
    decode.signal(signal.SIGCONT)
    end = await router.end_of(reply)
    assert end.error.kind == WorkError.KIND_KV_LOST
    stats = (await decode.link.report()).stats
    assert stats.blocks_quarantined
    assert not stats.blocks_pinned
    await stopped.kill()
    assert (await decode.link.quiet()).blocks_cached == 0


async def test_decode_worker_killed_and_another_takes_the_ticket(model_dir: Path, lab: Lab) -> None:
    request = work_request("r", prompt(400))
    prefill, killed, other = await lab.spawn(
        ("prefill", "p", {"delay_s": 0.1}), ("decode", "d0", {}), ("decode", "d1", {})
    )
    first_router, second_router = await lab.router(killed), await lab.router(other)
    ticket = await _start(prefill.link, request)
    first_router.submit(request, ticket)
    await killed.link.until(lambda stats: stats.blocks_pinned)
    await killed.kill()
    again = work_request("r", prompt(400), attempt=2)
    assert await second_router.tokens_of(again, ticket) == aggregated_tokens(model_dir, request)
    stats = await prefill.link.quiet()
    assert stats.prompt_tokens_total == 400, "the prompt was computed once"
    await other.link.quiet()


async def test_decode_worker_stopped_throws_its_bytes_away(model_dir: Path, lab: Lab) -> None:
    """SIGSTOP of D: P takes the lease back; when D wakes it must not use what it has read."""
    request = work_request("r", prompt(400))
    short = {"heartbeat_timeout_s": 1.5, "reattach_grace_s": 1.0}
    prefill, stopped = await lab.spawn(
        ("prefill", "p", {"delay_s": 0.2, **short}), ("decode", "d0", {"session_grace_s": 60.0})
    )
    router = await lab.router(stopped)
    reply = router.submit(request, await _start(prefill.link, request))
    await stopped.link.until(lambda stats: stats.blocks_pinned)
    stopped.signal(signal.SIGSTOP)
    await prefill.link.quiet()
    stopped.signal(signal.SIGCONT)
    end = await router.end_of(reply)
    assert end.error.kind == WorkError.KIND_KV_LOST
    assert not reply.tokens
    assert (await stopped.link.quiet()).blocks_cached == 0


async def test_first_word_of_a_dead_address(lab: Lab) -> None:
    (decode,) = await lab.spawn(("decode", "d", {}))
    router = await lab.router(decode)
    ticket = prefill_pb2.KvTicket(
        ticket_id="t", endpoint="127.0.0.1:1", num_tokens=30, layout=decode.info.layout
    )
    end = await router.end_of(router.submit(work_request("r", prompt(30)), ticket))
    assert end.error.kind == WorkError.KIND_KV_LOST
    assert not end.error.ticket_alive
    await eventually(lambda: router.messages)
