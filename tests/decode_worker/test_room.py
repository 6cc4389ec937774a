from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path

import pytest

from decode_worker.room import Room
from engine.api import RequestTooLargeError
from engine.loop import EngineStoppedError
from tests.support.requests import prompt, work_request
from tests.support.workers import eventually, worker_config
from worker.assembly import assemble
from worker.host import EngineHost
from worker.requests import engine_request


async def test_room_is_given_in_the_order_of_asking(model_dir: Path) -> None:
    assembly = await asyncio.to_thread(
        assemble, worker_config(model_dir, "d", num_blocks=12, max_model_len=192)
    )
    host = EngineHost(assembly.engine, lambda _: None, lambda _: None)
    host.start()
    try:
        room = Room(host)
        large = engine_request(work_request("large", prompt(180)))
        first = engine_request(work_request("first", prompt(100)))
        small = engine_request(work_request("small", prompt(10)))
        assert (await room.reserve(first)).num_unread_tokens == 0
        order: list[str] = []

        async def ask(name: str) -> None:
            await room.reserve({"large": large, "small": small}[name])
            order.append(name)

        waiting = [asyncio.create_task(ask("large"))]
        await asyncio.sleep(0)
        # There is room for this one now, but it came later.
        waiting.append(asyncio.create_task(ask("small")))
        await host.call(lambda engine: engine.stats())
        assert not order
        host.post(lambda engine: engine.abandon(first.request_id))
        await eventually(lambda: order == ["large"])
        host.post(lambda engine: engine.abandon(large.request_id))
        await eventually(lambda: order == ["large", "small"])

        # One that gives up lets the next one through.
        await host.call(lambda engine: engine.reserve(first))
        waiting[0] = asyncio.create_task(ask("large"))
        host.post(lambda engine: engine.abandon(small.request_id))
        await asyncio.sleep(0)
        waiting[1] = asyncio.create_task(ask("small"))
        waiting[0].cancel()
        await eventually(lambda: order == ["large", "small", "small"])

        with pytest.raises(RequestTooLargeError):
            await room.reserve(engine_request(work_request("huge", prompt(192))))
    finally:
        await host.stop()


async def test_a_better_priority_is_served_first(model_dir: Path) -> None:
    assembly = await asyncio.to_thread(
        assemble, worker_config(model_dir, "d", num_blocks=12, max_model_len=192)
    )
    host = EngineHost(assembly.engine, lambda _: None, lambda _: None)
    host.start()
    try:
        room = Room(host)
        held, worse, better = (
            dataclasses.replace(engine_request(work_request(name, prompt(100, seed))), priority=priority)
            for seed, (name, priority) in enumerate((("held", 0), ("worse", 3), ("better", -3)))
        )
        await room.reserve(held)
        waiting = [asyncio.create_task(room.reserve(request)) for request in (worse, better)]
        # Both have asked, the worse one first.
        await asyncio.sleep(0)
        host.post(lambda engine: engine.abandon(held.request_id))
        await eventually(waiting[1].done)
        assert not waiting[0].done()
        host.post(lambda engine: engine.abandon(better.request_id))
        await eventually(waiting[0].done)
    finally:
        await host.stop()


async def test_all_who_wait_are_served_between_two_steps(model_dir: Path) -> None:
    """A handover that waited for the one before it would pay an engine step for each place in the queue."""
    assembly = await asyncio.to_thread(assemble, worker_config(model_dir, "d"))
    host = EngineHost(assembly.engine, lambda _: None, lambda _: None)
    host.start()
    this_step, next_step = threading.Event(), threading.Event()
    try:
        room = Room(host)
        host.post(lambda _: this_step.wait())
        requests = [engine_request(work_request(f"r{n}", prompt(20))) for n in range(4)]
        waiting = [asyncio.create_task(room.reserve(request)) for request in requests]
        # All ask, then the room asks the engine.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        host.post(lambda _: next_step.wait())
        this_step.set()
        await eventually(lambda: all(task.done() for task in waiting))
        assert [task.result().request_id for task in waiting] == [r.request_id for r in requests]
    finally:
        this_step.set()
        next_step.set()
        await host.stop()


async def test_a_stopped_engine_is_told_to_everybody(model_dir: Path) -> None:
    assembly = await asyncio.to_thread(assemble, worker_config(model_dir, "d"))
    host = EngineHost(assembly.engine, lambda _: None, lambda _: None)
    host.start()
    await host.stop()
    room = Room(host)
    requests = [engine_request(work_request(f"r{n}", prompt(20))) for n in range(2)]
    for outcome in await asyncio.gather(*(room.reserve(r) for r in requests), return_exceptions=True):
        assert isinstance(outcome, EngineStoppedError)
