"""When steps are spent on finding out: rarely, more rarely if nothing new is found, and within a budget."""

from __future__ import annotations

BUDGET = 0.007
"""Share of all time that may be lost by steps that are not the best ones by what is known."""

FIRST_INTERVAL, LAST_INTERVAL = 8, 64
"""Steps between two probes: at first, and at most."""

_ALLOWANCE_STEPS = 3
_MEMORY = 8192


class Timer:
    """Says when the next probe of one thing is due: each that finds nothing new doubles the wait."""

    def __init__(self, first: int = FIRST_INTERVAL, last: int = LAST_INTERVAL) -> None:
        self._first = first
        self._last = last
        self._interval = first
        self._waited = 0

    def wait(self, steps: int = 1, patience: int = 1) -> bool:
        """So many steps have passed without a probe. Whether one is due; later by the factor `patience`."""
        self._waited += steps
        return self._waited >= patience * self._interval

    def probed(self) -> None:
        """A probe was made: the next is due after twice as long."""
        self._waited = 0
        self._interval = min(self._last, 2 * self._interval)

    def seen(self) -> None:
        """What a probe would find was seen in the normal course of things."""
        self._waited = 0

    def hurry(self) -> None:
        """Something has changed: waits are shorter again."""
        self._interval = max(self._first, self._interval // 4)

    def again(self) -> None:
        """The probe found something: the next is due at once."""
        self._waited = self._interval


class Budget:
    """Keeps the time that probes cost below `BUDGET` of all time. Times are estimates, in seconds."""

    def __init__(self) -> None:
        self._steps = 0
        self._total_s = 0.0
        self._lost_s = 0.0

    def step(self, seconds: float) -> None:
        """A step takes so long."""
        if self._steps >= _MEMORY:
            self._steps //= 2
            self._total_s /= 2
            self._lost_s /= 2
        self._steps += 1
        self._total_s += seconds

    def spend(self, seconds: float) -> bool:
        """Whether so much may be lost; then it is taken to be."""
        allowance_s = _ALLOWANCE_STEPS * self._total_s / max(1, self._steps)
        if self._lost_s + seconds > BUDGET * self._total_s + allowance_s:
            return False
        self._lost_s += max(0.0, seconds)
        return True
