"""The life of one request: place, prefill, decode, and again where something on the way failed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc

from kvrelay.v1 import common_pb2, decode_pb2, prefill_pb2, worker_pb2
from router.answer import Answer, TokenGapError
from router.background import BackgroundTasks
from router.decode_session import SessionLostError
from router.failover import (
    RETRY_AFTER_S,
    AttemptFailedError,
    FailureCause,
    classify_work_error,
    give_up,
    next_step,
)
from router.generation import (
    Admission,
    ErrorKind,
    GenerationEnd,
    GenerationError,
    GenerationRequest,
    TokenDelta,
)
from router.metrics import RouterMetrics
from router.placement import Booking, Placer, Target
from router.policies.base import NoWorkerError
from router.subscription import SessionEvent, SessionLost, Subscription
from router.wire import work_request
from router.worker_link import PrefillStartError, WorkerLink
from telemetry.logs import fields

_logger = logging.getLogger(__name__)

# How long `finish` waits for the worker's timeline: a step of a busy worker, seconds.
_FINISH_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Services:
    """What all generations of a router share.

    Attributes:
        placer: finds workers.
        metrics: is told what happened.
        background: releases tickets on the side.
        max_attempts: dispatches of one request before it fails.
        new_wait_s: how long a new request waits for a role that is missing: as long as a blip may last.
        interrupted_wait_s: how long one waits that a worker has begun.
    """

    placer: Placer
    metrics: RouterMetrics
    background: BackgroundTasks
    max_attempts: int
    new_wait_s: float
    interrupted_wait_s: float


class RoutedGeneration:
    """Implements `router.generation.Generation`.

    At any moment at most one decode worker runs the request (`_subscription`), and at most one ticket is out
    (`_ticket`); `_conclude` ends both, whatever the state.
    """

    def __init__(self, request: GenerationRequest, admission: Admission, services: Services) -> None:
        self._request = request
        self._services = services
        self._answer = Answer(request, admission)
        self._deadline: float | None = None
        if request.deadline is not None:
            self._deadline = asyncio.get_running_loop().time() + request.deadline - time.time()
        self._attempt = 0
        self._failure: AttemptFailedError | None = None
        self._target: Target | None = None
        self._fixed_decode: str | None = None
        self._ticket: tuple[prefill_pb2.KvTicket, WorkerLink] | None = None
        self._subscription: Subscription | None = None
        self._booking = Booking(request.request_id)
        self._over = False

    def __aiter__(self) -> AsyncIterator[TokenDelta | GenerationEnd]:
        return self

    async def __anext__(self) -> TokenDelta | GenerationEnd:
        """See `router.generation.Generation`."""
        if self._over:
            raise StopAsyncIteration
        try:
            if self._deadline is None:
                return await self._next()
            async with asyncio.timeout_at(self._deadline):
                return await self._next()
        except TimeoutError:
            self._conclude(ErrorKind.DEADLINE)
            raise GenerationError(ErrorKind.DEADLINE, "the request's deadline passed") from None
        except GenerationError as error:
            self._conclude(error.kind)
            raise
        except asyncio.CancelledError:
            self._conclude(ErrorKind.CANCELLED)
            raise
        except Exception as error:
            # A fault of the router itself must free the request's blocks on the workers all the same.
            _logger.exception("request failed in the router", extra=self._fields())
            self._conclude(ErrorKind.INTERNAL)
            raise GenerationError(ErrorKind.INTERNAL, "the router failed the request") from error

    async def finish(self) -> GenerationEnd:
        """See `router.generation.Generation`."""
        timeline: common_pb2.Timeline | None = None
        if self._subscription is not None and self._target is not None:
            self._target.decode.session.cancel(self._subscription, "the router has a stop string")
            try:
                async with asyncio.timeout(_FINISH_WAIT_S):
                    timeline = await _timeline_of(self._subscription)
            except TimeoutError:
                _logger.info("no timeline from the worker", extra=self._fields())
            except asyncio.CancelledError:
                self._conclude(ErrorKind.CANCELLED)
                raise
        return self._finish("stop", timeline)

    async def aclose(self) -> None:
        """See `router.generation.Generation`."""
        self._conclude(ErrorKind.CANCELLED)

    async def _next(self) -> TokenDelta | GenerationEnd:
        while True:
            try:
                if self._subscription is None:
                    self._subscription = await self._dispatch()
                event = self._take(await self._subscription.next())
                if event is not None:
                    return event
            except AttemptFailedError as failure:
                self._fail_over(failure)
                missing_end = self._answer.missing_end()
                if missing_end is not None:
                    return self._finish(missing_end, None)

    async def _dispatch(self) -> Subscription:
        """One attempt, up to its submission. Raises AttemptFailedError, GenerationError."""
        if self._failure is not None and self._attempt >= self._services.max_attempts:
            raise give_up(self._failure, self._attempt)
        ticket = self._ticket
        target = await self._place()
        self._target = target
        self._attempt += 1
        began = time.monotonic()
        context_tokens = len(self._request.prompt_token_ids) + len(self._answer.tokens)
        self._booking = self._services.placer.book(
            self._request.request_id, target, context_tokens, prefills=ticket is None
        )
        self._services.metrics.placements.labels("local" if target.prefill is None else "remote").inc()
        work = work_request(self._request, self._attempt, self._answer.tokens)
        start_s = 0.0
        if ticket is None and target.prefill is not None:
            start_began = time.monotonic()
            ticket = await self._start_prefill(target.prefill, target.matched_tokens, work)
            start_s = time.monotonic() - start_began
        elif ticket is None:
            self._answer.prefill_begins(target.matched_tokens)
        submit = decode_pb2.Submit(request=work, ticket=ticket and ticket[0])
        try:
            subscription = target.decode.session.submit(submit)
        except SessionLostError as error:
            # It went while prefill was started; the worker never heard of the ticket.
            raise self._decode_lost(str(error)) from error
        own_s = target.choosing_s + time.monotonic() - began - start_s
        self._services.metrics.overhead.observe(own_s)
        return subscription

    async def _place(self) -> Target:
        services = self._services
        holder = self._ticket and self._ticket[1]
        if holder is not None and not holder.available:
            self._release_ticket()
            holder = None
        try:
            return await services.placer.place(
                self._request.request_id,
                (*self._request.prompt_token_ids, *self._answer.tokens),
                self._request.cache_salt,
                fixed_decode=self._fixed_decode,
                ticket_holder=holder,
                wait_s=services.new_wait_s if self._failure is None else services.interrupted_wait_s,
            )
        except NoWorkerError as error:
            why = f" (before: {self._failure.message})" if self._failure else ""
            raise GenerationError(ErrorKind.UNAVAILABLE, f"{error}{why}", RETRY_AFTER_S) from error

    async def _start_prefill(
        self, link: WorkerLink, matched_tokens: int, work: worker_pb2.WorkRequest
    ) -> tuple[prefill_pb2.KvTicket, WorkerLink]:
        """Gets a ticket. Runs to its end even when cancelled: a ticket that nobody knows pins blocks."""
        call = asyncio.ensure_future(link.start_prefill(work))
        try:
            ticket = await asyncio.shield(call)
        except asyncio.CancelledError:
            self._services.background.spawn(_release_when_started(call, link))
            raise
        except PrefillStartError as error:
            message = f"{link.worker_id}: {error.message}"
            if error.code == grpc.StatusCode.INVALID_ARGUMENT:
                raise GenerationError(ErrorKind.INVALID, error.message) from error
            if error.code == grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise AttemptFailedError(
                    FailureCause.PREFILL_OVERLOADED, message, ticket_alive=False
                ) from error
            self._answer.prefill_begins(matched_tokens)
            raise AttemptFailedError(FailureCause.PREFILL_LOST, message, ticket_alive=False) from error
        self._answer.prefill_begins(matched_tokens)
        self._ticket = ticket, link
        return self._ticket

    def _take(self, event: SessionEvent) -> TokenDelta | GenerationEnd | None:
        """One event of the present attempt. Raises AttemptFailedError, GenerationError."""
        match event:
            case decode_pb2.TokenEvent():
                try:
                    delta = self._answer.take(event)
                except TokenGapError as error:
                    raise self._decode_lost(str(error)) from error
                # Decoding begins once the KV is validated and the ticket given back.
                self._ticket = None
                self._booking.clear()
                if delta is not None:
                    self._services.metrics.generated(len(delta.token_ids))
                return delta
            case decode_pb2.EndEvent():
                return self._take_end(event)
            case SessionLost():
                raise self._decode_lost(event.reason)

    def _take_end(self, event: decode_pb2.EndEvent) -> GenerationEnd:
        match event.finish_reason:
            case common_pb2.FINISH_REASON_STOP:
                return self._finish("stop", event.timeline)
            case common_pb2.FINISH_REASON_LENGTH:
                return self._finish("length", event.timeline)
            case common_pb2.FINISH_REASON_DEADLINE:
                raise GenerationError(ErrorKind.DEADLINE, "the request's deadline passed")
            case common_pb2.FINISH_REASON_ERROR:
                worker_id = self._target.decode.worker_id if self._target else ""
                raise classify_work_error(event.error, worker_id)
            case _:
                # Nobody here cancelled it: the worker shuts down.
                raise self._decode_lost("the worker cancelled the request")

    def _decode_lost(self, message: str) -> AttemptFailedError:
        worker_id = self._target.decode.worker_id if self._target else ""
        return AttemptFailedError(
            FailureCause.DECODE_LOST, f"{worker_id}: {message}", ticket_alive=self._ticket is not None
        )

    def _fail_over(self, failure: AttemptFailedError) -> None:
        """Cleans up after an attempt and sets what the next one keeps."""
        step = next_step(failure)
        _logger.warning(
            "attempt failed",
            extra=self._fields(cause=failure.cause, error=failure.message, reattach=step.reattach),
        )
        self._failure = failure
        self._services.metrics.failovers.labels(failure.cause).inc()
        self._booking.clear()
        if failure.cause is FailureCause.DECODE_OVERLOADED and self._ticket is None:
            self._answer.prefill_refused()
        if self._target is not None:
            self._target.decode.cool_down(step.decode_cooldown_s)
            if self._target.prefill is not None:
                self._target.prefill.cool_down(step.prefill_cooldown_s)
            self._fixed_decode = self._target.decode.worker_id if step.keep_decode else None
        self._unsubscribe(str(failure.cause))
        if not step.reattach:
            self._release_ticket()
            self._answer.attempt_over()

    def _finish(self, reason: str, worker_timeline: common_pb2.Timeline | None) -> GenerationEnd:
        """The good end."""
        target = self._target
        end = self._answer.end(
            "stop" if reason == "stop" else "length",
            worker_timeline,
            attempts=self._attempt,
            placement_reason=target.reason if target else "",
            prefill_worker=target.prefill.worker_id if target and target.prefill else "",
            decode_worker=target.decode.worker_id if target else "",
        )
        if not self._over:
            self._services.metrics.finished(
                end.timeline,
                prompt_tokens=len(self._request.prompt_token_ids),
                cached_tokens=end.cached_tokens,
                ttft_s=self._answer.ttft_s,
                tpot_s=self._answer.tpot_s,
            )
        self._conclude(reason)
        return end

    def _conclude(self, outcome: str) -> None:
        """The end, once: whatever still runs for the request anywhere is told to stop."""
        if self._over:
            return
        self._over = True
        self._booking.clear()
        if not self._runs():
            self._release_ticket()
        self._unsubscribe(outcome)
        self._services.metrics.ended(outcome)
        _logger.info("request ended", extra=self._fields(outcome=outcome))

    def _runs(self) -> bool:
        """Whether a decode worker is at it."""
        return (
            self._subscription is not None
            and self._target is not None
            and self._target.decode.session.carries(self._subscription)
        )

    def _unsubscribe(self, reason: str) -> None:
        """Ends the attempt on the decode worker, which gives the ticket back; nothing if it has ended."""
        if self._subscription is not None and self._target is not None:
            self._target.decode.session.drop(self._subscription, reason)
        self._subscription = None

    def _release_ticket(self) -> None:
        """Gives back a ticket that no decode worker will."""
        if self._ticket is not None:
            ticket, link = self._ticket
            self._services.background.spawn(link.release(ticket.ticket_id))
        self._ticket = None

    def _fields(self, **more: object) -> dict[str, dict[str, object]]:
        return fields(
            request_id=self._request.request_id,
            attempt=self._attempt,
            tokens=len(self._answer.tokens),
            decode_worker=self._target.decode.worker_id if self._target else "",
            **more,
        )


async def _timeline_of(subscription: Subscription) -> common_pb2.Timeline | None:
    """The timeline of the attempt's end; None where the worker is lost."""
    while True:
        event = await subscription.next()
        if isinstance(event, decode_pb2.EndEvent):
            return event.timeline
        if isinstance(event, SessionLost):
            return None


async def _release_when_started(call: asyncio.Future[prefill_pb2.KvTicket], link: WorkerLink) -> None:
    try:
        ticket = await call
    except PrefillStartError:
        return
    await link.release(ticket.ticket_id)
