from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from engine.api import Engine, StepOutput
from engine.core import LLMEngine
from engine.loop import EngineLoop, EngineStoppedError
from engine.runner import MAX_FAILED_STEPS
from tests.engine.digest_model import Answers, DigestModel, make_engine, params, reference, request

LIMIT_S = 60.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


class Bench:
    """A loop around an engine, and what its callbacks were told."""

    def __init__(self, engine: LLMEngine) -> None:
        self.outputs: list[StepOutput] = []
        self.failures: list[BaseException] = []
        self.threads: set[str] = set()
        self.loop = EngineLoop(engine, self._on_step, self.failures.append)

    def _on_step(self, output: StepOutput) -> None:
        self.threads.add(threading.current_thread().name)
        self.outputs.append(output)

    def ended(self) -> bool:
        answers = Answers()
        for output in list(self.outputs):
            answers.take(output)
        return bool(answers.ends)


@pytest.fixture
def model() -> DigestModel:
    return DigestModel()


@pytest.fixture
def bench(model: DigestModel) -> Iterator[Bench]:
    bench = Bench(make_engine(model=model))
    yield bench
    bench.loop.stop(LIMIT_S)
    assert not any(thread.name == "engine" for thread in threading.enumerate())


def test_runs_what_is_submitted_on_its_own_thread(bench: Bench) -> None:
    bench.loop.start()
    wanted = request("a", [1, 2, 3])
    assert bench.loop.call(lambda engine: engine.submit(wanted)).result(LIMIT_S) is None
    wait_until(bench.ended)
    tokens = tuple(token.token_id for output in bench.outputs for token in output.tokens)
    assert tokens == reference(wanted)[0]
    assert bench.threads == {"engine"}
    wait_until(lambda: bench.loop.steps == len(bench.outputs))


def test_calls_before_the_start_wait_for_it(bench: Bench) -> None:
    future = bench.loop.call(lambda engine: engine.stats().blocks_total)
    assert not future.done()
    bench.loop.start()
    assert future.result(LIMIT_S) == 64


def test_calls_run_in_order_between_steps(bench: Bench) -> None:
    bench.loop.start()
    seen: list[int] = []
    futures = [bench.loop.call(lambda engine, n=n: seen.append(n)) for n in range(100)]
    for future in futures:
        future.result(LIMIT_S)
    assert seen == list(range(100))


def test_what_a_call_raises_is_its_callers(bench: Bench) -> None:
    bench.loop.start()
    future = bench.loop.call(lambda engine: engine.submit(request("a", [])))
    with pytest.raises(ValueError, match="prompt is empty"):
        future.result(LIMIT_S)
    assert bench.loop.call(lambda engine: engine.has_work()).result(LIMIT_S) is False
    assert bench.failures == []


def test_a_cancelled_call_is_skipped(bench: Bench) -> None:
    seen: list[str] = []
    first = bench.loop.call(lambda engine: seen.append("first"))
    second = bench.loop.call(lambda engine: seen.append("second"))
    assert first.cancel()
    bench.loop.start()
    second.result(LIMIT_S)
    assert seen == ["second"]


def test_an_idle_thread_gives_signs_of_life(bench: Bench) -> None:
    bench.loop.start()
    bench.loop.call(lambda engine: None).result(LIMIT_S)
    # Without waking, silence would only grow: a smaller value later proves a sign of life between.
    for _ in range(3):
        wait_until(lambda: bench.loop.silent_s > 0.01)
        wait_until(lambda: bench.loop.silent_s < 0.01)
    assert bench.loop.steps == 0


def test_a_long_call_shows_as_silence(bench: Bench) -> None:
    bench.loop.start()
    entered, leave = threading.Event(), threading.Event()

    def block(engine: Engine) -> None:
        entered.set()
        leave.wait(LIMIT_S)

    future = bench.loop.call(block)
    assert entered.wait(LIMIT_S)
    wait_until(lambda: bench.loop.silent_s > 0.3)
    leave.set()
    future.result(LIMIT_S)
    wait_until(lambda: bench.loop.silent_s < 0.3)


def test_a_failing_engine_ends_the_loop(bench: Bench, model: DigestModel) -> None:
    model.broken = True
    bench.loop.start()
    for number in range(MAX_FAILED_STEPS):
        wait_until(lambda number=number: len(bench.outputs) == number)
        bench.loop.call(lambda engine, n=number: engine.submit(request(str(n), [1]))).result(LIMIT_S)
    wait_until(lambda: bool(bench.failures))
    assert [str(failure) for failure in bench.failures] == ["poisoned"]
    with pytest.raises(EngineStoppedError, match="the engine has failed: poisoned") as caught:
        bench.loop.call(lambda engine: engine.stats()).result(LIMIT_S)
    assert caught.value.__cause__ is bench.failures[0]


def test_a_failing_callback_ends_the_loop_and_the_calls_that_wait() -> None:
    engine = make_engine()
    failures: list[BaseException] = []
    stepped, go_on = threading.Event(), threading.Event()

    def on_step(output: StepOutput) -> None:
        stepped.set()
        go_on.wait(LIMIT_S)
        raise KeyError("callback")

    loop = EngineLoop(engine, on_step, failures.append)
    engine.submit(request("a", [1, 2, 3]))
    loop.start()
    assert stepped.wait(LIMIT_S)
    late: Future[int] = loop.call(lambda engine: engine.stats().running)
    go_on.set()
    with pytest.raises(EngineStoppedError, match="callback"):
        late.result(LIMIT_S)
    wait_until(lambda: bool(failures))
    loop.stop(LIMIT_S)


def test_stop_ends_a_busy_loop_and_refuses_later_calls(bench: Bench) -> None:
    bench.loop.start()
    wanted = request("a", [1, 2, 3], params(200))
    bench.loop.call(lambda engine: engine.submit(wanted)).result(LIMIT_S)
    bench.loop.stop(LIMIT_S)
    with pytest.raises(EngineStoppedError, match="has stopped"):
        bench.loop.call(lambda engine: None).result(LIMIT_S)
    bench.loop.stop(LIMIT_S)
    assert bench.failures == []


def test_stop_before_the_start_fails_the_calls_that_wait(bench: Bench) -> None:
    future = bench.loop.call(lambda engine: None)
    bench.loop.stop(LIMIT_S)
    with pytest.raises(EngineStoppedError):
        future.result(LIMIT_S)


def test_stop_may_be_called_from_a_callback() -> None:
    engine = make_engine()
    engine.submit(request("a", [1, 2, 3], params(50)))
    loop = EngineLoop(engine, lambda output: loop.stop(), lambda error: None)
    loop.start()
    wait_until(lambda: loop.call(lambda engine: None).exception(LIMIT_S) is not None)
    loop.stop(LIMIT_S)
    assert loop.steps == 1
