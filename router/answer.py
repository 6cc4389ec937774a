"""What one request's client has got so far: tokens, each once, and what it will be told at the end."""

from __future__ import annotations

import time
from typing import Literal

from kvrelay.v1 import common_pb2, decode_pb2
from router.generation import Admission, GenerationEnd, GenerationRequest, TokenDelta, TokenLogprobs
from router.wire import token_logprobs


class TokenGapError(Exception):
    """A worker skipped tokens, or their log probabilities: nothing after that can be used."""


class Answer:
    """Tokens and usage of one request over all its attempts.

    Invariant: `tokens` is what the client was given, in order; it only grows.
    """

    def __init__(self, request: GenerationRequest, admission: Admission) -> None:
        self.tokens: list[int] = []
        self._request = request
        self._admission = admission
        self._first_at: float | None = None
        self._last_at = 0.0
        self._prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self._cached: int | None = None
        # What the present attempt can at most have found in caches; None once it has said so itself.
        self._cached_bound: int | None = None

    def take(self, event: decode_pb2.TokenEvent) -> TokenDelta | None:
        """The event's tokens that are new; None where the client has them all. Raises TokenGapError."""
        if event.HasField("prefilled"):
            self._note_cached(event.prefilled.cached_tokens)
            self._cached_bound = None
            if event.prefilled.prompt_logprobs:
                self._prompt_logprobs = tuple(map(token_logprobs, event.prefilled.prompt_logprobs))
        known = len(self.tokens) - event.index
        if known < 0:
            raise TokenGapError(f"token {event.index} came where {len(self.tokens)} was expected")
        fresh = tuple(event.token_ids[known:])
        if not fresh:
            return None
        reported = len(event.token_ids) if self._request.sampling.logprobs is not None else 0
        if len(event.logprobs) != reported:
            raise TokenGapError(
                f"{len(event.logprobs)} log probabilities came where {reported} were expected"
            )
        logprobs = tuple(token_logprobs(message) for message in event.logprobs[known:])
        of_prompt = () if self.tokens else self._prompt_logprobs
        delta = TokenDelta(fresh, len(self.tokens), logprobs, of_prompt)
        self.tokens.extend(fresh)
        self._last_at = time.monotonic()
        if self._first_at is None:
            self._first_at = self._last_at
        return delta

    def prefill_begins(self, matched_tokens: int) -> None:
        """Another prefill of this request starts, where so many leading tokens were believed cached."""
        self.attempt_over()
        self._cached_bound = matched_tokens

    def attempt_over(self) -> None:
        """The attempt ended. If it never said what it found, it may have computed all that was not cached.

        That may come back to this very request as a cache hit, and must not be counted as one.
        """
        if self._cached_bound is not None:
            self._note_cached(self._cached_bound)
            self._cached_bound = None

    def prefill_refused(self) -> None:
        """The prefill that was to begin did not: nothing was computed."""
        self._cached_bound = None

    def _note_cached(self, tokens: int) -> None:
        tokens = min(tokens, len(self._request.prompt_token_ids))
        self._cached = tokens if self._cached is None else min(self._cached, tokens)

    def missing_end(self) -> Literal["stop", "length"] | None:
        """How the answer ended, where its tokens alone say so although no worker lived to."""
        sampling = self._request.sampling
        if len(self.tokens) >= sampling.max_tokens:
            return "length"
        if len(self.tokens) > sampling.min_tokens and self.tokens[-1] in sampling.stop_token_ids:
            return "stop"
        return None

    @property
    def ttft_s(self) -> float | None:
        """From arrival to the first token; None before it."""
        return None if self._first_at is None else self._first_at - self._admission.arrived_at

    @property
    def tpot_s(self) -> float | None:
        """Mean time between tokens after the first; None with fewer than two."""
        if self._first_at is None or len(self.tokens) < 2:
            return None
        return (self._last_at - self._first_at) / (len(self.tokens) - 1)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that nobody computed for this request, as far as is known."""
        return self._cached or 0

    def end(
        self,
        finish_reason: Literal["stop", "length"],
        worker_timeline: common_pb2.Timeline | None,
        *,
        attempts: int,
        placement_reason: str,
        prefill_worker: str,
        decode_worker: str,
    ) -> GenerationEnd:
        """The last event: the last worker's timeline, with what only the router knows."""
        self.attempt_over()
        timeline = common_pb2.Timeline()
        if worker_timeline is not None:
            timeline.CopyFrom(worker_timeline)
        if self._first_at is not None and (attempts > 1 or worker_timeline is None):
            # No worker saw the whole of it.
            timeline.decode_s = self._last_at - self._first_at
        timeline.router_queue_s = self._admission.queue_s
        timeline.ttft_s = self.ttft_s or 0.0
        timeline.attempts = attempts
        timeline.placement_reason = placement_reason
        timeline.local_prefill = not prefill_worker
        timeline.prefill_worker = prefill_worker
        timeline.decode_worker = decode_worker
        return GenerationEnd(
            finish_reason, self.cached_tokens, len(self.tokens), timeline, self._prompt_logprobs
        )
