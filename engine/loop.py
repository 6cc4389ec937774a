"""The thread that owns an engine."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from engine.api import Engine, StepOutput
from telemetry.logs import fields

T = TypeVar("T")

logger = logging.getLogger(__name__)

IDLE_WAIT_S = 0.1


class Pacing(Protocol):
    """Says when the next step is due. Used on the engine's thread alone."""

    def wait_s(self, engine: Engine) -> float:
        """Seconds for which the next step is to wait, though there is work; 0 for none.

        Calls are made meanwhile, and it is asked anew after each of them.
        """
        ...

    def stepped(self, output: StepOutput) -> None:
        """A step was made."""
        ...


class EngineStoppedError(RuntimeError):
    """The loop has ended, so the call was not made; the cause is the failure that ended it, if any."""


class EngineLoop:
    """Runs `engine.step()` on a thread of its own while there is work, and calls between steps.

    Callbacks run on the engine's thread and must not block: hand over to an event loop. An exception out
    of `step` or `on_step` ends the loop: calls not made yet fail with EngineStoppedError, then
    `on_failure` is told.

    Args:
        engine: touched by this thread alone from `start` on.
        on_step: gets the output of every step.
        on_failure: gets the exception that ended the loop.
    """

    def __init__(
        self,
        engine: Engine,
        on_step: Callable[[StepOutput], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._pacing: Pacing | None = None
        self._on_step = on_step
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._changed = threading.Condition()
        # Guarded by `_changed`.
        self._calls: deque[Callable[[BaseException | None], None]] = deque()
        self._stopping = False
        self._ended = False
        self._failure: BaseException | None = None
        # Written by the engine's thread alone; reading one value needs no lock.
        self._steps = 0
        self._last_sign_s = time.monotonic()

    def pace_by(self, pacing: Pacing) -> None:
        """Has steps wait as it says, instead of each following the one before at once. Before `start`."""
        self._pacing = pacing

    def start(self) -> None:
        """Starts the thread."""
        self._last_sign_s = time.monotonic()
        self._thread.start()

    def call(self, function: Callable[[Engine], T]) -> Future[T]:
        """Runs `function(engine)` on the engine's thread between two steps.

        Calls run in order. The future has the result, what the function raised, or EngineStoppedError.
        One that is cancelled before its turn is skipped.
        """
        future: Future[T] = Future()

        def run(failure: BaseException | None) -> None:
            if not future.set_running_or_notify_cancel():
                return
            if failure is not None:
                future.set_exception(failure)
                return
            try:
                result = function(self._engine)
            # Whatever it is, it belongs to the caller, who waits on the future.
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._changed:
            ended = self._ended
            if not ended:
                self._calls.append(run)
                self._changed.notify()
        if ended:
            run(self._stopped_error())
        return future

    @property
    def steps(self) -> int:
        """Steps done since the start."""
        return self._steps

    @property
    def silent_s(self) -> float:
        """Seconds since the thread last began a step, ran a call or woke idle (it wakes every 100 ms)."""
        return time.monotonic() - self._last_sign_s

    def stop(self, timeout_s: float = 5.0) -> None:
        """Ends the loop after the step or call in progress; calls not made yet fail.

        Waits so long for the thread to end, unless called from it; a longer step is left to end by itself.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is None:
            self._close(None)
        elif self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                logger.warning("engine thread is still in a step", extra=fields(waited_s=timeout_s))

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while self._work():
                pass
        # Nobody else sees what happens on this thread: everything must reach `on_failure`.
        except BaseException as error:
            failure = error
        self._close(failure)
        if failure is not None:
            self._on_failure(failure)

    def _work(self) -> bool:
        """Runs the calls that wait, then one step; waits where there is neither. False once stopped."""
        self._last_sign_s = time.monotonic()
        with self._changed:
            if self._stopping:
                return False
            calls, self._calls = self._calls, deque()
        for run in calls:
            run(None)
            self._last_sign_s = time.monotonic()
        wait_s = IDLE_WAIT_S
        if self._engine.has_work():
            wait_s = 0.0 if self._pacing is None else self._pacing.wait_s(self._engine)
            if not wait_s:
                self._step()
                return True
        with self._changed:
            if not self._calls and not self._stopping:
                self._changed.wait(min(wait_s, IDLE_WAIT_S))
        return True

    def _step(self) -> None:
        output = self._engine.step()
        self._steps += 1
        if self._pacing is not None:
            self._pacing.stepped(output)
        self._on_step(output)

    def _close(self, failure: BaseException | None) -> None:
        with self._changed:
            self._failure = failure
            self._ended = True
            calls, self._calls = self._calls, deque()
        for run in calls:
            run(self._stopped_error())

    def _stopped_error(self) -> EngineStoppedError:
        if self._failure is None:
            return EngineStoppedError("the engine has stopped")
        error = EngineStoppedError(f"the engine has failed: {self._failure}")
        error.__cause__ = self._failure
        return error
