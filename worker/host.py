"""The engine's thread as seen from the event loop: calls in, step outputs out, failure noticed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from engine.api import Engine, EngineStats, StepOutput
from engine.loop import EngineLoop, EngineStoppedError, Pacing

T = TypeVar("T")

logger = logging.getLogger(__name__)


class EngineHost:
    """Owns the engine's thread and brings everything it says to one event loop, in order.

    The order that callers rely on: calls run in the order of `call` and `post`; a step output produced
    before a call ran is delivered before that call's result.

    Args:
        engine: not stepped by anybody else.
        on_step: called in the event loop with each step's output.
        on_failure: called in the event loop, once, when the engine's thread died.
    """

    def __init__(
        self,
        engine: Engine,
        on_step: Callable[[StepOutput], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._events = asyncio.get_running_loop()
        self._on_step = on_step
        self._on_failure = on_failure
        self._engine = engine
        self._loop = EngineLoop(engine, self._stepped, self._died)
        self._stats = engine.stats()

    def pace_by(self, pacing: Pacing) -> None:
        """As `EngineLoop.pace_by`. Before `start`."""
        self._loop.pace_by(pacing)

    def start(self) -> None:
        """Starts the engine's thread."""
        self._loop.start()

    @property
    def stats(self) -> EngineStats:
        """As of the last step or call."""
        return self._stats

    @property
    def steps(self) -> int:
        """Engine steps so far."""
        return self._loop.steps

    @property
    def silent_s(self) -> float:
        """Seconds since the engine's thread last said that it lives."""
        return self._loop.silent_s

    async def call(self, function: Callable[[Engine], T]) -> T:
        """Runs `function(engine)` between two steps. A cancelled caller does not stop it.

        Raises:
            EngineStoppedError: the thread has ended; the function did not run.
        """
        future = asyncio.wrap_future(self._submit(function))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(_retrieve)
            raise

    def post(
        self, function: Callable[[Engine], T], on_error: Callable[[BaseException], None] | None = None
    ) -> None:
        """Queues `function(engine)` and does not wait.

        `on_error` is called in the event loop where it raised; without it, that is logged as a defect. A
        stopped engine is no error: its requests have been ended by then.
        """

        def done(future: Future[T]) -> None:
            error = future.exception()
            if error is None or isinstance(error, EngineStoppedError):
                return
            if on_error is not None:
                self._events.call_soon_threadsafe(on_error, error)
            else:
                logger.error("engine call failed", exc_info=error)

        self._submit(function).add_done_callback(done)

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Stops the thread after its current step."""
        await asyncio.to_thread(self._loop.stop, timeout_s)

    def _submit(self, function: Callable[[Engine], T]) -> Future[T]:
        def run(engine: Engine) -> T:
            try:
                return function(engine)
            finally:
                self._stats = engine.stats()

        return self._loop.call(run)

    # The two below run on the engine's thread.

    def _stepped(self, output: StepOutput) -> None:
        self._stats = self._engine.stats()
        self._events.call_soon_threadsafe(self._on_step, output)

    def _died(self, error: BaseException) -> None:
        self._events.call_soon_threadsafe(self._on_failure, error)


def _retrieve(future: asyncio.Future[T]) -> None:
    if not future.cancelled():
        future.exception()
