"""Every attempt on a decode worker, from Submit to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field

from decode_worker.clock import RequestClock
from decode_worker.errors import WorkFailedError
from decode_worker.handover import HandedOver, Handover, HandoverTools
from decode_worker.outbox import Answer
from decode_worker.session import RouterSession
from engine.api import EngineRequest, FinishReason, StepOutput, TokenOutput
from engine.grammar.base import CompiledGrammar
from kv_transfer.types import KvTicket
from kv_transfer.wire import ticket_from_wire
from kvrelay.v1 import common_pb2, decode_pb2, worker_pb2
from telemetry.logs import bind_request, fields
from worker.admission import Refusal, RefusedError
from worker.requests import at_deadline, engine_request, logprobs_message

logger = logging.getLogger(__name__)

_KIND_OF = {
    Refusal.DRAINING: decode_pb2.WorkError.KIND_OVERLOADED,
    Refusal.QUEUE_FULL: decode_pb2.WorkError.KIND_OVERLOADED,
    Refusal.STALE_ATTEMPT: decode_pb2.WorkError.KIND_INVALID,
    Refusal.INVALID: decode_pb2.WorkError.KIND_INVALID,
}
_REASON_OF = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
}


@dataclass(slots=True, eq=False)
class _Attempt:
    session: RouterSession
    work: worker_pb2.WorkRequest
    sequence: EngineRequest
    ticket: KvTicket | None
    answer: Answer
    clock: RequestClock = field(default_factory=RequestClock)
    deadline: asyncio.TimerHandle | None = None
    handover: Handover | None = None
    # Held so that the engine finds it compiled.
    grammar: CompiledGrammar | None = None


class RequestTable:
    """Takes requests in, gives each its tokens and exactly one end. Lives in one event loop.

    Attributes:
        num_handovers: in progress.
        transfer_bytes: read by all finished handovers.
        transfer_seconds: sum of the durations of their reads.
    """

    def __init__(self, tools: HandoverTools) -> None:
        self._tools = tools
        self._runtime = tools.runtime
        self._by_engine_id: dict[str, _Attempt] = {}
        self._by_request: dict[str, _Attempt] = {}
        # Handovers, those included that are over but for the last word to their prefill worker.
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_handovers = 0
        self.transfer_bytes = 0
        self.transfer_seconds = 0.0

    # What routers say.

    def submit(self, session: RouterSession, submit: decode_pb2.Submit) -> None:
        """Takes a request in; a refusal is its end.

        A router that comes back may say again what it said before: an attempt that is here goes on as it is,
        and the end of one that is over is sent again anyway.
        """
        work = submit.request
        known = self._by_request.get(work.request_id)
        if known is not None and known.work.attempt == work.attempt:
            return
        if session.outbox.has_end(work.request_id, work.attempt):
            return
        sequence = engine_request(work)
        answer = Answer(work.request_id, work.attempt, first_index=len(work.resumed_token_ids))
        attempt = _Attempt(session, work, sequence, None, answer)
        session.outbox.open(answer)
        has_ticket = submit.HasField("ticket")
        if known is not None and known.work.attempt < work.attempt:
            # First, for it gives up its place. A ticket that goes on in the later attempt stays alive.
            goes_on = known.ticket is not None and known.ticket.ticket_id == submit.ticket.ticket_id
            why = f"attempt {work.attempt} took its place"
            self._stop(known, common_pb2.FINISH_REASON_CANCELLED, why, keep_ticket=goes_on)
        try:
            if has_ticket:
                attempt.ticket = ticket_from_wire(submit.ticket)
            self._runtime.admission.admit(sequence.request_id, work.request_id, work.attempt, sequence)
        except RefusedError as refused:
            self._runtime.metrics.refused(refused.refusal)
            self._end(attempt, error=WorkFailedError(_KIND_OF[refused.refusal], str(refused), has_ticket))
            return
        except ValueError as error:
            self._end(attempt, error=WorkFailedError(decode_pb2.WorkError.KIND_INVALID, str(error)))
            return
        self._by_engine_id[sequence.request_id] = attempt
        self._by_request[work.request_id] = attempt
        attempt.deadline = at_deadline(
            work.deadline_unix_ms,
            lambda: self._stop(attempt, common_pb2.FINISH_REASON_DEADLINE, "the deadline passed"),
        )
        if attempt.ticket is not None:
            self._start_handover(attempt, attempt.ticket)
        elif sequence.sampling.grammar is None:
            self._submit_to_engine(attempt)
        else:
            self._spawn(self._compile_and_submit(attempt))

    def cancel(self, cancel: decode_pb2.Cancel) -> None:
        """Ends a request. Unknown ones, and attempts later than the one meant, are left alone."""
        attempt = self._by_request.get(cancel.request_id)
        if attempt is not None and attempt.work.attempt <= cancel.attempt:
            self._stop(attempt, common_pb2.FINISH_REASON_CANCELLED, cancel.reason or "cancelled")

    def abandon(self, session: RouterSession) -> None:
        """Ends every request of a router that is lost."""
        for attempt in [a for a in self._by_engine_id.values() if a.session is session]:
            self._stop(attempt, common_pb2.FINISH_REASON_CANCELLED, "the router is lost")

    # What the engine says.

    def on_step(self, output: StepOutput) -> None:
        """Gives one step's tokens to their requests."""
        for done in output.prefills_done:
            if (attempt := self._by_engine_id.get(done.request_id)) is not None:
                attempt.clock.local = done
        # Before the tokens: the last of them ends a request.
        for report in output.drafts:
            if (attempt := self._by_engine_id.get(report.request_id)) is not None:
                attempt.clock.verified(report)
        for token in output.tokens:
            if (attempt := self._by_engine_id.get(token.request_id)) is not None:
                self._take(attempt, token)
        for failure in output.failures:
            if (attempt := self._by_engine_id.get(failure.request_id)) is not None:
                error = WorkFailedError(decode_pb2.WorkError.KIND_INTERNAL, failure.message)
                self._end(attempt, error=error)

    def fail_all(self, reason: str) -> None:
        """Ends every request: the engine is of no use any more. Another worker can take them."""
        for attempt in list(self._by_engine_id.values()):
            error = WorkFailedError(
                decode_pb2.WorkError.KIND_OVERLOADED, reason, ticket_alive=attempt.handover is not None
            )
            self._end(attempt, error=error)
            if attempt.handover is not None:
                attempt.handover.stop()

    async def close(self) -> None:
        """Waits until every handover has given back what it held."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    # A request's way.

    def _start_handover(self, attempt: _Attempt, ticket: KvTicket) -> None:
        def proven(handed_over: HandedOver) -> None:
            attempt.clock.handed_over = handed_over
            self.transfer_bytes += handed_over.reads.num_bytes
            self.transfer_seconds += handed_over.reads.busy_s

        handover = Handover(self._tools, attempt.sequence, ticket, proven)
        attempt.handover = handover
        self.num_handovers += 1
        self._spawn(self._run_handover(attempt, handover))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _submit_to_engine(self, attempt: _Attempt) -> None:
        self._runtime.host.post(
            lambda engine: engine.submit(attempt.sequence),
            lambda error: self._refused_by_engine(attempt, error),
        )

    async def _compile_and_submit(self, attempt: _Attempt) -> None:
        if await self._compile(attempt):
            self._submit_to_engine(attempt)

    async def _compile(self, attempt: _Attempt) -> bool:
        """Compiles the request's grammar; False where the request is over, by that or meanwhile."""
        grammars = self._runtime.grammars
        try:
            attempt.grammar = grammar = await grammars.compiled(attempt.sequence)
            if grammar is not None and await grammars.is_answered(attempt.sequence, grammar):
                self._end(attempt, common_pb2.FINISH_REASON_STOP)
        except RefusedError as refused:
            self._runtime.metrics.refused(refused.refusal)
            self._end(attempt, error=WorkFailedError(_KIND_OF[refused.refusal], str(refused)))
        # A defect must end its one request, visibly, and not leave it waiting for ever.
        except Exception as error:
            logger.exception("compiling broke down")
            self._end(attempt, error=WorkFailedError(decode_pb2.WorkError.KIND_INTERNAL, repr(error)))
        return attempt.answer.end is None

    async def _run_handover(self, attempt: _Attempt, handover: Handover) -> None:
        with bind_request(attempt.work.request_id):
            try:
                needs_grammar = attempt.sequence.sampling.grammar is not None
                if needs_grammar and not await self._compile(attempt) and not handover.stopped:
                    # It only tells the prefill worker then.
                    handover.stop("the request ended with its grammar")
                await handover.run()
            except WorkFailedError as error:
                self._handover_failed(attempt, error)
            except asyncio.CancelledError:
                # The request has ended already; this task alone is to stop.
                logger.debug("handover cancelled")
            # A defect must end its one request, visibly, and not leave it waiting for ever.
            except Exception as error:
                logger.exception("handover broke down")
                failure = WorkFailedError(decode_pb2.WorkError.KIND_INTERNAL, repr(error))
                self._handover_failed(attempt, failure)
            finally:
                attempt.handover = None
                self.num_handovers -= 1
                await handover.close()

    def _handover_failed(self, attempt: _Attempt, error: WorkFailedError) -> None:
        if attempt.answer.end is None:
            kind = decode_pb2.WorkError.Kind.Name(error.kind).removeprefix("KIND_").lower()
            self._runtime.metrics.handover_failed(kind)
            logger.warning("handover failed", extra=fields(kind=kind, reason=str(error)))
            self._end(attempt, error=error)

    def _refused_by_engine(self, attempt: _Attempt, error: BaseException) -> None:
        invalid = isinstance(error, ValueError)
        kind = decode_pb2.WorkError.KIND_INVALID if invalid else decode_pb2.WorkError.KIND_INTERNAL
        self._end(attempt, error=WorkFailedError(kind, str(error)))

    def _take(self, attempt: _Attempt, token: TokenOutput) -> None:
        answer = attempt.answer
        attempt.clock.token()
        if not answer.token_ids:
            answer.cached_tokens = attempt.clock.cached_tokens
            answer.prompt_logprobs = attempt.clock.prompt_logprobs
        if token.logprobs is not None:
            answer.logprobs.append(logprobs_message(token.logprobs))
        answer.token_ids.append(token.token_id)
        attempt.session.outbox.changed(answer)
        if token.finish_reason is not None:
            self._end(attempt, _REASON_OF[token.finish_reason])

    def _stop(
        self, attempt: _Attempt, reason: common_pb2.FinishReason, why: str, keep_ticket: bool = False
    ) -> None:
        """Ends a request before its time, wherever it is, and lets go of what it holds."""
        if attempt.answer.end is not None:
            return
        self._end(attempt, reason)
        if attempt.handover is not None:
            attempt.handover.stop(abandon_reason="" if keep_ticket else why)
        # Its reservation, where it is one, is the handover's to give back; this is for what was adopted.
        self._runtime.host.post(lambda engine: engine.cancel(attempt.sequence.request_id))

    def _end(
        self,
        attempt: _Attempt,
        reason: common_pb2.FinishReason = common_pb2.FINISH_REASON_ERROR,
        error: WorkFailedError | None = None,
    ) -> None:
        """The one end of a request."""
        if attempt.answer.end is not None:
            return
        if attempt.deadline is not None:
            attempt.deadline.cancel()
        engine_id = attempt.sequence.request_id
        if self._by_engine_id.pop(engine_id, None) is attempt:
            self._runtime.admission.leave(engine_id)
        if self._by_request.get(attempt.work.request_id) is attempt:
            del self._by_request[attempt.work.request_id]
        attempt.answer.end = decode_pb2.EndEvent(
            request_id=attempt.work.request_id,
            attempt=attempt.work.attempt,
            finish_reason=reason,
            error=error.to_wire() if error is not None else None,
            timeline=attempt.clock.timeline(
                decode_worker=self._runtime.config.worker_id,
                prefill_worker=attempt.ticket.worker_id if attempt.ticket is not None else "",
                trace=attempt.work.trace,
            ),
        )
        attempt.session.outbox.changed(attempt.answer)
