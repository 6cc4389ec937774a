from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine.api import StepOutput
from engine.loop import EngineStoppedError
from tests.support.requests import prompt, work_request
from tests.support.workers import Pace, eventually, worker_config
from worker.host import EngineHost
from worker.requests import engine_request


class Hosted:
    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.heard: list[str] = []
        self.failures: list[BaseException] = []
        self.host = EngineHost(pace.engine, self._on_step, self.failures.append)

    def _on_step(self, output: StepOutput) -> None:
        self.heard.extend(f"token {token.index}" for token in output.tokens)


@pytest_asyncio.fixture
async def hosted(model_dir: Path) -> AsyncIterator[Hosted]:
    pace = Pace()
    await asyncio.to_thread(pace.build, worker_config(model_dir, "w"))
    hosted = Hosted(pace)
    hosted.host.start()
    yield hosted
    await hosted.host.stop()


async def test_steps_before_a_call_are_heard_before_its_result(hosted: Hosted) -> None:
    hosted.pace.engine.delay_s = 0.02
    request = engine_request(work_request("r", prompt(20), max_tokens=900))
    await hosted.host.call(lambda engine: engine.submit(request))
    await eventually(lambda: hosted.heard)
    await hosted.host.call(lambda engine: engine.cancel(request.request_id))
    heard = len(hosted.heard)
    await hosted.host.call(lambda engine: None)
    await asyncio.sleep(0.1)
    assert len(hosted.heard) == heard, "nothing comes after a cancel"
    assert hosted.host.stats.blocks_pinned == 0
    assert hosted.host.steps >= heard
    assert hosted.host.silent_s < 60


async def test_a_call_s_error_is_its_caller_s(hosted: Hosted) -> None:
    with pytest.raises(ZeroDivisionError):
        await hosted.host.call(lambda _: 1 // 0)
    errors: list[BaseException] = []
    hosted.host.post(lambda _: 1 // 0, errors.append)
    await eventually(lambda: errors)
    assert not hosted.failures


async def test_a_posted_error_that_nobody_waits_for_is_logged(
    hosted: Hosted, caplog: pytest.LogCaptureFixture
) -> None:
    hosted.host.post(lambda _: 1 // 0)
    await eventually(lambda: "engine call failed" in caplog.text)


async def test_a_cancelled_caller_does_not_stop_the_call(hosted: Hosted) -> None:
    hosted.pace.engine.delay_s = 0.2
    await hosted.host.call(lambda e: e.submit(engine_request(work_request("r", prompt(90)))))
    ran: list[int] = []
    waiting = asyncio.create_task(hosted.host.call(lambda _: ran.append(1)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await eventually(lambda: ran)


async def test_a_dead_engine_is_told_once_and_calls_fail(hosted: Hosted) -> None:
    hosted.pace.engine.broken = True
    await hosted.host.call(lambda e: e.submit(engine_request(work_request("r", prompt(9)))))
    await eventually(lambda: hosted.failures)
    with pytest.raises(EngineStoppedError, match="the test broke the engine"):
        await hosted.host.call(lambda _: None)
    hosted.host.post(lambda _: None)
    assert len(hosted.failures) == 1
