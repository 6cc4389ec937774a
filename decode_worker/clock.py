"""Where the time of one attempt went on a decode worker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from decode_worker.handover import HandedOver
from engine.api import DraftReport, PrefillDone
from kvrelay.v1 import common_pb2
from worker.requests import logprobs_message


@dataclass(slots=True)
class RequestClock:
    """Collects what a Timeline needs. Times are seconds on the event loop's clock.

    Attributes:
        handed_over: the finished handover; None for a local prefill.
        local: the finished local prefill.
    """

    handed_over: HandedOver | None = None
    local: PrefillDone | None = None
    _first_token_at: float | None = None
    _last_token_at: float = 0.0
    _passes: int = 0
    _drafted: int = 0
    _accepted: int = 0

    def verified(self, report: DraftReport) -> None:
        """A pass decoded for the request."""
        self._passes += 1
        self._drafted += report.drafted
        self._accepted += report.accepted

    def token(self) -> None:
        """A token came from the engine."""
        self._last_token_at = asyncio.get_running_loop().time()
        if self._first_token_at is None:
            self._first_token_at = self._last_token_at

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that nobody computed in this attempt."""
        if self.handed_over is not None:
            return self.handed_over.finished.cached_tokens
        return self.local.cached_tokens if self.local is not None else 0

    @property
    def prompt_logprobs(self) -> list[common_pb2.TokenLogprobs]:
        """Of the prompt's tokens from the second on, where they were asked for."""
        if self.handed_over is not None:
            return list(self.handed_over.finished.prompt_logprobs)
        return [logprobs_message(each) for each in self.local.prompt_logprobs] if self.local else []

    def timeline(self, decode_worker: str, prefill_worker: str, trace: bool) -> common_pb2.Timeline:
        """The worker's part of the timeline; the router fills in its own."""
        timeline = common_pb2.Timeline(
            local_prefill=not prefill_worker,
            prefill_worker=prefill_worker,
            decode_worker=decode_worker,
            decode_passes=self._passes,
            drafted_tokens=self._drafted,
            accepted_tokens=self._accepted,
        )
        if self._first_token_at is not None:
            timeline.decode_s = self._last_token_at - self._first_token_at
        if self.local is not None:
            timeline.prefill_queue_s = self.local.queue_s
            timeline.prefill_s = self.local.prefill_s
        if self.handed_over is not None:
            self._add_handover(timeline, self.handed_over, trace)
        return timeline

    def _add_handover(self, timeline: common_pb2.Timeline, done: HandedOver, trace: bool) -> None:
        timeline.prefill_queue_s = done.finished.queue_s
        timeline.prefill_s = done.finished.prefill_s
        timeline.transfer_s = max(0.0, done.settled_at - done.finished_at)
        timeline.transfer_busy_s = done.reads.busy_s
        timeline.transfer_bytes = done.reads.num_bytes
        timeline.transport = done.transport
        if self._first_token_at is not None:
            timeline.decode_queue_s = max(0.0, self._first_token_at - done.settled_at)
        if trace:
            timeline.spans.extend(_spans(done))


def _spans(done: HandedOver) -> list[common_pb2.Span]:
    chunks = [
        common_pb2.Span(
            name="prefill_chunk",
            start_unix_ns=chunk.start_unix_ns,
            end_unix_ns=chunk.end_unix_ns,
            num_tokens=chunk.num_tokens,
            pid=done.prefill_pid,
        )
        for chunk in done.chunks
    ]
    reads = [
        common_pb2.Span(
            name="transfer",
            start_unix_ns=span.start_unix_ns,
            end_unix_ns=span.end_unix_ns,
            num_tokens=span.num_tokens,
            num_bytes=span.num_bytes,
            pid=done.decode_pid,
        )
        for span in done.reads.spans
    ]
    return chunks + reads
