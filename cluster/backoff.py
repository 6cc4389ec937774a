"""How long to wait before something that died is started again."""

from __future__ import annotations

import time
from collections.abc import Callable


class Backoff:
    """Doubles the delay with each failure and forgets them after a calm time.

    Args:
        first_s: delay after the second failure; the first is answered at once.
        longest_s: the delay's bound.
        calm_s: after so long without a failure the count starts anew.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        first_s: float = 1.0,
        longest_s: float = 30.0,
        calm_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._calm_s = calm_s
        self._clock = clock
        self._failures = 0
        self._last = -calm_s

    @property
    def failures(self) -> int:
        """In a row."""
        return self._failures

    def failed(self) -> float:
        """Counts a failure; returns the seconds to wait before the next start."""
        now = self._clock()
        if now - self._last > self._calm_s:
            self._failures = 0
        self._last = now
        self._failures += 1
        if self._failures == 1:
            return 0.0
        return float(min(self._first_s * 2.0 ** min(self._failures - 2, 32), self._longest_s))
