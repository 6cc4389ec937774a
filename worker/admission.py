"""Who is let in: drain, stale attempts, size and queue bound, the same for both roles."""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum

from engine.api import EngineRequest
from kv_transfer.attempts import AttemptFence, StaleAttemptError

# Longest delay of a dispatch that is still refused as stale, and requests remembered for it.
_ATTEMPT_MEMORY_S = 600.0
_ATTEMPT_CAPACITY = 1 << 16


class Refusal(StrEnum):
    """Why a request was not let in."""

    DRAINING = "draining"
    STALE_ATTEMPT = "stale_attempt"
    INVALID = "invalid"
    QUEUE_FULL = "queue_full"


class RefusedError(Exception):
    """The request was not let in; nothing of it is kept."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


class Admission:
    """Counts what is inside and remembers the attempts that were seen.

    An entry is a key of the caller's choosing, from `admit` to `leave`.

    Args:
        max_inside: requests admitted and not finished, at most.
        max_context_tokens: prompt and resumed tokens of one request, at most.
    """

    def __init__(self, max_inside: int, max_context_tokens: int) -> None:
        self._max_inside = max_inside
        self._max_context_tokens = max_context_tokens
        self._attempts = AttemptFence(
            memory_s=_ATTEMPT_MEMORY_S, capacity=_ATTEMPT_CAPACITY, clock=time.monotonic
        )
        self._inside: set[str] = set()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._closed_because = ""

    @property
    def num_inside(self) -> int:
        """Requests admitted and not finished."""
        return len(self._inside)

    @property
    def draining(self) -> bool:
        """Whether nobody is let in any more."""
        return bool(self._closed_because)

    def close(self, reason: str) -> None:
        """Lets nobody in from now on."""
        self._closed_because = self._closed_because or reason

    def admit(self, key: str, request_id: str, attempt: int, request: EngineRequest) -> None:
        """Lets one request in. Raises RefusedError."""
        if self._closed_because:
            raise RefusedError(Refusal.DRAINING, f"worker takes no requests: {self._closed_because}")
        try:
            self._attempts.admit(request_id, attempt)
        except StaleAttemptError as stale:
            raise RefusedError(Refusal.STALE_ATTEMPT, str(stale)) from stale
        _check_values(request, self._max_context_tokens)
        if len(self._inside) >= self._max_inside:
            raise RefusedError(Refusal.QUEUE_FULL, f"{self._max_inside} requests are already here")
        self._inside.add(key)
        self._emptied.clear()

    def leave(self, key: str) -> None:
        """The request is over. Unknown keys are no error."""
        self._inside.discard(key)
        if not self._inside:
            self._emptied.set()

    async def wait_empty(self, timeout_s: float) -> int:
        """Waits until nobody is inside; returns how many still are when the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._emptied.wait()
        except TimeoutError:
            return len(self._inside)
        return 0


def _check_values(request: EngineRequest, max_context_tokens: int) -> None:
    num_tokens = request.num_context_tokens
    if not request.prompt_token_ids:
        raise RefusedError(Refusal.INVALID, "the prompt is empty")
    if num_tokens > max_context_tokens:
        raise RefusedError(
            Refusal.INVALID, f"{num_tokens} context tokens, but this worker can hold {max_context_tokens}"
        )
    if request.sampling.max_tokens <= len(request.resumed_token_ids):
        raise RefusedError(
            Refusal.INVALID,
            f"max_tokens is {request.sampling.max_tokens}, "
            f"{len(request.resumed_token_ids)} tokens are there already",
        )
