"""A clock that a test turns."""

from __future__ import annotations


class Clock:
    """Tells `now_s` when called, then moves on by `step_s`; a test may set either.

    Args:
        now_s: the first time that it tells, seconds.
        step_s: what passes with every look, seconds.
    """

    def __init__(self, now_s: float = 0.0, step_s: float = 0.0) -> None:
        self.now_s = now_s
        self.step_s = step_s

    def __call__(self) -> float:
        now_s = self.now_s
        self.now_s += self.step_s
        return now_s
