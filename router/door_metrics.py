"""What the front doors tell Prometheus: calls by their outcome and duration. The core counts the rest."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_GRAMMAR_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)


class DoorMetrics:
    """Calls of both doors. `call` is a known path or RPC name, never what a client made up."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._calls = Counter(
            "kvrelay_router_calls",
            "Calls that ended, by door, call and status (HTTP status or gRPC code).",
            ("door", "call", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "kvrelay_router_call_seconds",
            "From a call's arrival to its last byte.",
            ("door", "call"),
            registry=registry,
            buckets=_SECONDS,
        )
        self._open = Gauge(
            "kvrelay_router_open_calls", "Calls that have not ended.", ("door",), registry=registry
        )

        self._answers = Counter(
            "kvrelay_router_answers",
            "Choices that clients got to their end, by why they ended: stop, length, tool_calls.",
            ("reason",),
            registry=registry,
        )
        self._grammars = Histogram(
            "kvrelay_router_grammar_seconds",
            "What a request waits for its grammar: cached, compiled, or refused.",
            ("outcome",),
            registry=registry,
            buckets=_GRAMMAR_SECONDS,
        )

    def answered(self, reason: str) -> None:
        """A choice ended."""
        self._answers.labels(reason).inc()

    def grammar(self, outcome: str, seconds: float) -> None:
        """A request's grammar was found, made, or refused."""
        self._grammars.labels(outcome).observe(seconds)

    def began(self, door: str) -> None:
        """A call came in."""
        self._open.labels(door).inc()

    def ended(self, door: str, call: str, status: str, seconds: float) -> None:
        """A call ended, in whatever way."""
        self._open.labels(door).dec()
        self._calls.labels(door, call, status).inc()
        self._seconds.labels(door, call).observe(seconds)
