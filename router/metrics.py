"""What the router's core tells Prometheus, and the totals that `RouterAdmin.Status` answers with."""

from __future__ import annotations

import time
from collections import deque

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kvrelay.v1 import common_pb2

_SECONDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
_RATE_WINDOW_S = 10.0


class RateWindow:
    """Sum of what happened in the last ten seconds, for a rate."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, count: int) -> None:
        """Notes `count` things now."""
        self._entries.append((time.monotonic(), count))
        self._sum += count
        self._trim()

    def per_second(self) -> float:
        """Things a second, over the window."""
        self._trim()
        return self._sum / _RATE_WINDOW_S

    def _trim(self) -> None:
        oldest = time.monotonic() - _RATE_WINDOW_S
        while self._entries and self._entries[0][0] < oldest:
            self._sum -= self._entries.popleft()[1]


class RouterMetrics:
    """Metrics of one router, on a registry of its own or the one given. Durations are in seconds."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self.tokens_rate = RateWindow()
        self.requests_total = 0
        self.prompt_tokens_total = 0
        self.cached_tokens_total = 0
        self.completion_tokens_total = 0

        self.requests = self._counter("requests", "Generations that ended, by outcome.", "outcome")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of generations that ended well.")
        self.cached_tokens = self._counter("cached_tokens", "Those that nobody computed for the request.")
        self.completion_tokens = self._counter("completion_tokens", "Tokens given to clients.")
        self.placements = self._counter("placements", "Attempts by where they prefill.", "prefill")
        self.failovers = self._counter("failovers", "Attempts that failed and were tried again.", "cause")
        self.queued = self._gauge("queued_requests", "Client requests in the admission queue.")
        self.running = self._gauge(
            "running_requests", "Generations of client requests admitted and not ended."
        )
        self.index_available = self._gauge("index_available", "1 while the prefix index answers.")
        self.ttft = self._histogram("ttft_seconds", "From arrival to the first token.")
        self.ttft_parts = self._histogram(
            "ttft_part_seconds",
            "The time to the first token, split; measured by the process that spent it.",
            "part",
        )
        parts = ("router_queue", "prefill_queue", "prefill", "transfer", "decode_queue")
        self._ttft_part = {part: self.ttft_parts.labels(part) for part in parts}
        self.tpot = self._histogram("tpot_seconds", "Mean time between tokens after the first.")
        self.overhead = self._histogram(
            "overhead_seconds",
            "The router's own part of an attempt: hashing, index lookup, choice, up to handing it to the "
            "decode worker, without waiting for workers.",
        )

    def ended(self, outcome: str) -> None:
        """A generation ended, well or not."""
        self.requests_total += 1
        self.requests.labels(outcome).inc()

    def generated(self, tokens: int) -> None:
        """Tokens went to a client."""
        self.completion_tokens_total += tokens
        self.completion_tokens.inc(tokens)
        self.tokens_rate.add(tokens)

    def finished(
        self,
        timeline: common_pb2.Timeline,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        ttft_s: float | None,
        tpot_s: float | None,
    ) -> None:
        """A generation ended well."""
        self.prompt_tokens_total += prompt_tokens
        self.cached_tokens_total += cached_tokens
        self.prompt_tokens.inc(prompt_tokens)
        self.cached_tokens.inc(cached_tokens)
        if ttft_s is not None:
            self.ttft.observe(ttft_s)
        if tpot_s is not None:
            self.tpot.observe(tpot_s)
        self._ttft_part["router_queue"].observe(timeline.router_queue_s)
        self._ttft_part["prefill_queue"].observe(timeline.prefill_queue_s)
        self._ttft_part["prefill"].observe(timeline.prefill_s)
        self._ttft_part["transfer"].observe(timeline.transfer_s)
        self._ttft_part["decode_queue"].observe(timeline.decode_queue_s)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"kvrelay_router_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"kvrelay_router_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"kvrelay_router_{name}", text, labels, registry=self.registry, buckets=_SECONDS)
