"""Prometheus metrics of one worker process, served over HTTP on a port of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.api import EngineStats, StepOutput
from worker.speculation_metrics import speculation_metrics

_STEP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """What is read at each scrape.

    Attributes:
        engine: gauges and totals of the engine.
        steps: engine steps so far.
        inside: requests admitted and not finished.
        leases: tickets alive (prefill) or handovers in progress (decode).
        quarantine_age_s: age of the oldest read that is not settled; 0 where there is none.
        transfer_bytes: bytes of KV of handovers completed since the start.
        transfer_seconds: sum of the durations of their reads.
        draining: 1 while no request is let in.
    """

    engine: EngineStats
    steps: int
    inside: int
    leases: int
    quarantine_age_s: float
    transfer_bytes: int
    transfer_seconds: float
    draining: bool


class _SnapshotCollector(Collector):
    """Turns the worker's own counts into metrics when they are asked for."""

    def __init__(self, labels: dict[str, str], snapshot: Callable[[], WorkerSnapshot]) -> None:
        self._names = tuple(labels)
        self._values = tuple(labels.values())
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """One family for each count."""
        now = self._snapshot()
        blocks = GaugeMetricFamily(
            "kvrelay_worker_blocks", "KV blocks by state.", labels=(*self._names, "state")
        )
        for state, count in (
            ("free", now.engine.blocks_free),
            ("cached", now.engine.blocks_cached),
            ("pinned", now.engine.blocks_pinned),
            ("quarantined", now.engine.blocks_quarantined),
        ):
            blocks.add_metric((*self._values, state), count)
        yield blocks
        preemptions = CounterMetricFamily(
            "kvrelay_worker_preemptions",
            "Sequences put back for want of blocks, by what becomes of their KV.",
            labels=(*self._names, "kind"),
        )
        for kind, count in (
            ("recompute", now.engine.preemptions_total - now.engine.swaps_total),
            ("swap", now.engine.swaps_total),
        ):
            preemptions.add_metric((*self._values, kind), count)
        yield preemptions
        for name, text, gauge in (
            ("running", "Sequences in the engine's batch.", now.engine.running),
            ("waiting", "Sequences that wait for a place in it.", now.engine.waiting),
            ("queued_prefill_tokens", "Prompt tokens not computed yet.", now.engine.queued_prefill_tokens),
            ("requests", "Requests admitted and not finished.", now.inside),
            ("leases", "Tickets alive or handovers in progress.", now.leases),
            ("quarantine_age_seconds", "Age of the oldest unsettled read.", now.quarantine_age_s),
            ("swap_blocks", "Blocks of host memory to swap to.", now.engine.swap_blocks_total),
            ("swap_blocks_used", "Of these, in use.", now.engine.swap_blocks_used),
            ("draining", "1 while no request is let in.", int(now.draining)),
        ):
            family = GaugeMetricFamily(f"kvrelay_worker_{name}", text, labels=self._names)
            family.add_metric(self._values, gauge)
            yield family
        for name, text, total in (
            ("steps", "Engine steps.", now.steps),
            ("prompt_tokens", "Prompt tokens of finished prefills.", now.engine.prompt_tokens_total),
            ("prefix_hit_tokens", "Of these, found in the prefix cache.", now.engine.cached_tokens_total),
            ("generated_tokens", "Tokens drawn.", now.engine.generated_tokens_total),
            ("swapped_out_blocks", "KV blocks copied to host memory.", now.engine.swapped_out_blocks_total),
            ("swapped_in_blocks", "KV blocks copied back.", now.engine.swapped_in_blocks_total),
            ("transfer_bytes", "Bytes of KV of completed handovers.", now.transfer_bytes),
            ("transfer_seconds", "Sum of the durations of their reads.", now.transfer_seconds),
        ):
            counter = CounterMetricFamily(f"kvrelay_worker_{name}", text, labels=self._names)
            counter.add_metric(self._values, total)
            yield counter
        if now.engine.speculation is not None:
            yield from speculation_metrics(self._names, self._values, now.engine.speculation)


class WorkerMetrics:
    """The registry of one worker and its HTTP server.

    Attributes:
        handover_failures: handovers that failed, by kind.
        refusals: requests not let in, by reason.
    """

    def __init__(self, worker_id: str, role: str, snapshot: Callable[[], WorkerSnapshot]) -> None:
        self._labels = {"worker": worker_id, "role": role}
        self._registry = CollectorRegistry()
        self._registry.register(_SnapshotCollector(self._labels, snapshot))
        names = tuple(self._labels)
        self._step_seconds = Histogram(
            "kvrelay_worker_step_seconds",
            "Duration of one engine step.",
            names,
            buckets=_STEP_BUCKETS_S,
            registry=self._registry,
        ).labels(**self._labels)
        self._batch_size = Histogram(
            "kvrelay_worker_batch_size",
            "Sequences in one engine step.",
            names,
            buckets=_BATCH_BUCKETS,
            registry=self._registry,
        ).labels(**self._labels)
        self._handover_failures = Counter(
            "kvrelay_worker_handover_failures",
            "Handovers that failed, by kind.",
            (*names, "kind"),
            registry=self._registry,
        )
        self._refusals = Counter(
            "kvrelay_worker_refusals",
            "Requests not let in, by reason.",
            (*names, "reason"),
            registry=self._registry,
        )
        self._server: tuple[WSGIServer, threading.Thread] | None = None

    def observe_step(self, output: StepOutput) -> None:
        """Counts one engine step."""
        if output.batch_size:
            self._step_seconds.observe(output.duration_s)
            self._batch_size.observe(output.batch_size)

    def handover_failed(self, kind: str) -> None:
        """Counts one failed handover."""
        self._handover_failures.labels(**self._labels, kind=kind).inc()

    def refused(self, reason: str) -> None:
        """Counts one request that was not let in."""
        self._refusals.labels(**self._labels, reason=reason).inc()

    def serve(self, host: str) -> str:
        """Serves /metrics on a free port; returns its URL."""
        self._server = start_http_server(0, addr=host, registry=self._registry)
        return f"http://{host}:{self._server[0].server_port}/metrics"

    def stop(self) -> None:
        """Stops the HTTP server."""
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
            self._server = None
