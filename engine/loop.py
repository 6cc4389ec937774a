"""The thread that owns an engine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from engine.api import Engine, StepOutput

T = TypeVar("T")


class EngineLoop(Protocol):
    """SEAM, to be replaced by the class of this name. Runs `engine.step()` while there is work.

    Callbacks run on the engine's thread and must not block: hand over to an event loop.
    """

    def __init__(
        self,
        engine: Engine,
        on_step: Callable[[StepOutput], None],
        on_failure: Callable[[BaseException], None],
    ) -> None: ...

    def start(self) -> None: ...

    def call(self, function: Callable[[Engine], T]) -> Future[T]:
        """Runs `function(engine)` on the engine's thread between two steps."""
        ...

    @property
    def steps(self) -> int: ...

    @property
    def silent_s(self) -> float:
        """Seconds since the thread last began a step, ran a call or woke idle (it wakes every 100 ms)."""
        ...

    def stop(self, timeout_s: float = 5.0) -> None: ...
