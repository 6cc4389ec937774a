"""The router's tie to one process of one worker: its channel, its reports, its decode session, its load."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from kvrelay.v1 import prefill_pb2, worker_pb2
from kvrelay.v1.decode_pb2_grpc import DecodeStub
from kvrelay.v1.prefill_pb2_grpc import PrefillStub
from kvrelay.v1.worker_pb2_grpc import WorkerStub
from prefix_index.index import IndexMatch
from router.decode_session import DecodeSession
from router.policies.base import WorkerView
from telemetry.logs import fields

_logger = logging.getLogger(__name__)

_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 1.0
# Reports asked for in one heartbeat time-out.
_REPORTS = 12
# A booking counts until so many reports have come after it: the first may have been on its way already.
_BOOKING_REPORTS = 2
# grpc.aio cancels calls at random where thousands start on one channel at once.
_MAX_CALLS = 512

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Another incarnation behind the same port must not inherit this one's connection backoff.
    ("grpc.use_local_subchannel_pool", 1),
)


class PrefillStartError(Exception):
    """`Prefill.Start` failed.

    Attributes:
        code: gRPC status.
        message: the worker's own words.
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


@dataclass(slots=True, eq=False)
class _Booking:
    """Load that was sent to a worker after so many reports. `gone` is set when it counts no more."""

    prefill_tokens: int
    reports_seen: int
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class WorkerLink:
    """One worker process, as the supervisor named it.

    Args:
        info: who it is.
        router_id: this router's name.
        heartbeat_timeout_s: silence after which it counts as lost.
        refusal: why the router will not use it; empty where it will.
        on_change: called whenever `available` may have changed.
    """

    def __init__(
        self,
        info: worker_pb2.WorkerInfo,
        *,
        router_id: str,
        heartbeat_timeout_s: float,
        refusal: str,
        on_change: Callable[[], None],
    ) -> None:
        self.info = info
        self.worker_id: str = info.worker_id
        self.refusal = refusal
        self.report = worker_pb2.WorkerReport()
        self._timeout_s = heartbeat_timeout_s
        self._on_change = on_change
        self._channel = grpc.aio.insecure_channel(info.endpoint, options=_CHANNEL_OPTIONS)
        self._worker = WorkerStub(self._channel)
        self._prefill = PrefillStub(self._channel)
        self._calls = asyncio.Semaphore(_MAX_CALLS)
        self._closed = False
        self._healthy = False
        self._since = time.monotonic()
        self._reports = 0
        self._bookings: dict[str, _Booking] = {}
        self._cool_until = 0.0
        self._watcher: asyncio.Task[None] | None = None
        self._session: DecodeSession | None = None
        if info.role == worker_pb2.WORKER_ROLE_DECODE:
            self._session = DecodeSession(
                DecodeStub(self._channel), router_id, self.worker_id, heartbeat_timeout_s, on_change
            )

    def start(self) -> None:
        """Begins to watch it and, for a decode worker, opens the session."""
        self._watcher = asyncio.create_task(self._watch())
        if self._session is not None:
            self._session.start()

    async def close(self) -> None:
        """Ends everything; requests that run there are lost to it and go elsewhere."""
        self._closed = True
        self._set_healthy(healthy=False)
        if self._session is not None:
            await self._session.close()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await self._channel.close(grace=None)

    @property
    def session(self) -> DecodeSession:
        """The decode worker's session. Raises TypeError for a prefill worker."""
        if self._session is None:
            raise TypeError(f"{self.worker_id} does not decode")
        return self._session

    @property
    def can_prefill(self) -> bool:
        """Whether it prefills for others."""
        return bool(self.info.role == worker_pb2.WORKER_ROLE_PREFILL)

    @property
    def can_decode(self) -> bool:
        """Whether it decodes."""
        return self._session is not None

    @property
    def healthy(self) -> bool:
        """Whether reports of this very incarnation arrive."""
        return self._healthy

    @property
    def silent_s(self) -> float:
        """Seconds since the last report, or since the link was made."""
        return time.monotonic() - self._since

    @property
    def available(self) -> bool:
        """Whether it may be given work."""
        connected = self._session is None or self._session.connected
        return self._healthy and connected and not self.refusal and not self.report.draining

    def cool_down(self, seconds: float) -> None:
        """Gives work to others, where there are others, for a moment after a failure."""
        self._cool_until = max(self._cool_until, time.monotonic() + seconds)

    @property
    def cooling_s(self) -> float:
        """Seconds for which others are preferred."""
        return max(0.0, self._cool_until - time.monotonic())

    def book(self, request_id: str, prefill_tokens: int) -> asyncio.Event:
        """Notes load that its next reports cannot show yet. The event is set when the note has gone."""
        booking = self._bookings[request_id] = _Booking(prefill_tokens, self._reports)
        return booking.gone

    def unbook(self, request_id: str) -> None:
        """Removes a note. Unknown ones are no error."""
        booking = self._bookings.pop(request_id, None)
        if booking is not None:
            booking.gone.set()

    def view(self, match: IndexMatch | None) -> WorkerView:
        """What a policy sees.

        The index knows bookings of all routers, this link those of its own router that are still on their
        way there: the larger of the two is taken, never the sum.
        """
        tokens = sum(booking.prefill_tokens for booking in self._bookings.values())
        requests = len(self._bookings)
        if match is not None:
            tokens = max(tokens, match.booked_tokens.get(self.worker_id, 0))
            requests = max(requests, match.booked_requests.get(self.worker_id, 0))
        stats = self.report.stats
        return WorkerView(
            worker_id=self.worker_id,
            can_prefill=self.can_prefill,
            can_decode=self.can_decode,
            queued_prefill_tokens=stats.queued_prefill_tokens + tokens,
            running=stats.running + stats.waiting + requests,
            blocks_available=stats.blocks_free + stats.blocks_cached,
            blocks_total=stats.blocks_total,
        )

    async def start_prefill(self, request: worker_pb2.WorkRequest) -> prefill_pb2.KvTicket:
        """`Prefill.Start`. Raises PrefillStartError; a worker that hangs gives DEADLINE_EXCEEDED."""
        start = prefill_pb2.StartRequest(request=request)
        try:
            async with self._calls:
                self._require_open()
                response: prefill_pb2.StartResponse = await self._prefill.Start(
                    start, timeout=self._timeout_s
                )
        except grpc.aio.AioRpcError as error:
            raise PrefillStartError(error.code(), error.details() or "") from error
        except asyncio.CancelledError:
            # Closing a channel cancels its calls as if their caller had.
            self._require_open()
            raise
        return response.ticket

    async def release(self, ticket_id: str) -> None:
        """`Prefill.Release`, as well as it can be done: the ticket's time to live does the rest."""
        request = prefill_pb2.ReleaseRequest(ticket_id=ticket_id, incarnation=self.info.incarnation)
        try:
            async with self._calls:
                if self._closed:
                    return  # The process that gave the ticket is gone, and its blocks with it.
                await self._prefill.Release(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            _logger.info(
                "ticket not released",
                extra=fields(worker_id=self.worker_id, ticket_id=ticket_id, error=error.details()),
            )

    def _require_open(self) -> None:
        if self._closed:
            raise PrefillStartError(grpc.StatusCode.UNAVAILABLE, "the worker was replaced")

    async def _watch(self) -> None:
        backoff_s = _BACKOFF_MIN_S
        while True:
            reports = self._reports
            reason = await self._read_reports()
            if self._healthy:
                _logger.warning(
                    "worker lost",
                    extra=fields(worker_id=self.worker_id, incarnation=self.info.incarnation, reason=reason),
                )
            self._set_healthy(healthy=False)
            if self._reports > reports:
                backoff_s = _BACKOFF_MIN_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(_BACKOFF_MAX_S, 2 * backoff_s)

    async def _read_reports(self) -> str:
        """Reads one Watch stream to its end; returns why it ended."""
        interval_ms = math.ceil(1000 * self._timeout_s / _REPORTS)
        call = self._worker.Watch(worker_pb2.WatchRequest(interval_ms=interval_ms))
        reports = aiter(call)
        try:
            while True:
                async with asyncio.timeout(self._timeout_s):
                    report = await anext(reports)
                self._take(report)
        except StopAsyncIteration:
            return "the worker ended the stream"
        except TimeoutError:
            return f"silent for {self._timeout_s} s"
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        # Whatever nobody foresaw, such as a report that cannot be read: the worker must not count as healthy.
        except Exception as error:
            _logger.exception("reports failed", extra=fields(worker_id=self.worker_id))
            return f"failed in the router: {error!r}"
        finally:
            call.cancel()

    def _take(self, report: worker_pb2.WorkerReport) -> None:
        self._since = time.monotonic()
        was_draining = self.report.draining
        self.report = report
        self._reports += 1
        for request_id, booking in list(self._bookings.items()):
            if self._reports - booking.reports_seen >= _BOOKING_REPORTS:
                self.unbook(request_id)
        # Another process answers behind this address: only the supervisor may say that it is the worker now.
        self._set_healthy(healthy=report.incarnation == self.info.incarnation)
        if was_draining != report.draining:
            self._on_change()

    def _set_healthy(self, *, healthy: bool) -> None:
        if healthy != self._healthy:
            self._healthy = healthy
            self._on_change()
