"""Which endpoint is tried when. No input or output: the clients do what is decided here."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence

from kvrelay.errors import DeadlineExceededError, KvrelayError, UnavailableError

# An endpoint that failed is tried last for so long.
_SHUN_S = 2.0
_FIRST_BACKOFF_S = 0.05
_LAST_BACKOFF_S = 1.0


def checked_endpoints(endpoints: str | Sequence[str]) -> tuple[str, ...]:
    """`host:port` addresses, at least one. Raises ValueError."""
    addresses = (endpoints,) if isinstance(endpoints, str) else tuple(endpoints)
    if not addresses:
        raise ValueError("at least one endpoint is needed")
    for address in addresses:
        if not address or "://" in address or ":" not in address:
            raise ValueError(f"endpoint {address!r} must be host:port, of a router's gRPC door")
    return addresses


class Endpoints:
    """The addresses with what is known of their health. Shared by all requests of a client."""

    def __init__(self, addresses: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.addresses = tuple(addresses)
        self._clock = clock
        self._turn = itertools.count(random.randrange(len(self.addresses)))
        self._shunned_until = [0.0] * len(self.addresses)

    def order(self) -> list[int]:
        """All endpoints, the one to be tried first first: in turn, those that failed lately last."""
        first, now = next(self._turn), self._clock()
        turn = [(first + step) % len(self.addresses) for step in range(len(self.addresses))]
        return sorted(turn, key=lambda index: self._shunned_until[index] > now)

    def failed(self, index: int) -> None:
        """Notes that an endpoint could not be reached."""
        self._shunned_until[index] = self._clock() + _SHUN_S

    def answered(self, index: int) -> None:
        """Notes that an endpoint answered."""
        self._shunned_until[index] = 0.0


class Attempts:
    """The tries of one request: where, for how long, and whether to go on after a failure.

    Only UnavailableError is worth another try. Each endpoint is tried once without a pause, whatever
    `retries` says; then it backs off.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        retries: int,
        timeout_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoints = endpoints
        self._order = endpoints.order()
        self._retries = max(retries, len(self._order) - 1)
        self._clock = clock
        self._deadline = None if timeout_s is None else clock() + timeout_s
        self._failures = 0

    @property
    def endpoint(self) -> int:
        """The one to try now."""
        return self._order[self._failures % len(self._order)]

    @property
    def remaining_s(self) -> float | None:
        """Seconds left for the request, at least 0; None for no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def answered(self) -> None:
        """Notes that the present endpoint answered."""
        self._endpoints.answered(self.endpoint)

    def failed(self, error: KvrelayError) -> float:
        """Notes a failure of the present try. Returns the seconds to wait before the next.

        Raises:
            KvrelayError: `error` itself, or DeadlineExceededError where no time is left for another try.
        """
        if not isinstance(error, UnavailableError):
            raise error
        self._endpoints.failed(self.endpoint)
        self._failures += 1
        if self._failures > self._retries:
            raise error
        rounds = self._failures // len(self._order)
        if self._failures % len(self._order):
            pause = 0.0
        else:
            longest = min(_FIRST_BACKOFF_S * 2 ** (rounds - 1), _LAST_BACKOFF_S)
            # Jitter, so that the clients of a router that died do not come in step.
            pause = longest * random.uniform(0.5, 1.0)
        remaining = self.remaining_s
        if remaining is not None and pause >= remaining:
            raise DeadlineExceededError(f"the deadline passed while no endpoint was available: {error}")
        return pause
