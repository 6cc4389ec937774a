"""Keeps callers from waiting one after the other for a server that is away."""

from __future__ import annotations

import time
from collections.abc import Callable


class CircuitBreaker:
    """Closed: all calls go through. After a failure none does for `cooldown_s`; then one at a time probes.

    Each admitted call must end in exactly one of `succeed`, `fail` or `abandon`.
    """

    def __init__(self, cooldown_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._cooldown_s = cooldown_s
        self._clock = clock
        self._open_until: float | None = None
        self._probing = False

    @property
    def closed(self) -> bool:
        """Whether the last call that ended succeeded (true before the first)."""
        return self._open_until is None

    def admit(self) -> bool:
        """Whether the caller may try now."""
        if self._open_until is None:
            return True
        if self._probing or self._clock() < self._open_until:
            return False
        self._probing = True
        return True

    def succeed(self) -> None:
        """The call got its answer."""
        self._open_until = None
        self._probing = False

    def fail(self) -> None:
        """The call got none."""
        self._open_until = self._clock() + self._cooldown_s
        self._probing = False

    def abandon(self) -> None:
        """The call was cancelled and says nothing about the server."""
        self._probing = False
