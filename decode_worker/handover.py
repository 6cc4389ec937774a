"""One handover: from a ticket to a sequence that decodes on blocks proven to hold the right KV."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from decode_worker.channels import PrefillChannels
from decode_worker.errors import WorkFailedError, kv_lost
from decode_worker.gathering import Gathering, share_cores
from decode_worker.lease import Lease
from decode_worker.room import Room
from engine.api import Engine, EngineRequest, RequestTooLargeError, Reservation, TokenLogprobs
from engine.loop import EngineStoppedError
from kv_transfer.identity import require_same, without_draft
from kv_transfer.reader import KvReader, KvReads, ReadTotals
from kv_transfer.types import (
    IdentityMismatchError,
    KvTicket,
    LayoutMismatchError,
    PeerLostError,
    TransferError,
)
from kv_transfer.wire import identity_from_wire, identity_to_wire, layout_to_wire
from kvrelay.v1 import decode_pb2, prefill_pb2
from telemetry.logs import fields
from worker.requests import token_logprobs
from worker.runtime import WorkerRuntime

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A handover whose KV is proven. Times are seconds on the event loop's clock.

    Attributes:
        finished: the prefill worker's last word.
        finished_at: when it came.
        settled_at: when the last read had settled.
        reads: what was read.
        chunks: when each part of the KV became ready.
        prefill_pid: the process that computed it.
        decode_pid: the process that read it.
        transport: name.
    """

    finished: prefill_pb2.Finished
    finished_at: float
    settled_at: float
    reads: ReadTotals
    chunks: tuple[prefill_pb2.KvReady, ...]
    prefill_pid: int
    decode_pid: int
    transport: str


@dataclass(frozen=True, slots=True)
class HandoverTools:
    """What all handovers of a worker share. `readers` is by transport name, best first."""

    runtime: WorkerRuntime
    channels: PrefillChannels
    readers: dict[str, KvReader]
    room: Room
    gathering: Gathering


class Handover:
    """Takes one sequence over. It may be stopped at any moment, which gives everything back.

    The order of things is the protocol (docs/handover.md): blocks are reserved once the first KV is ready,
    full blocks are read while later ones are computed, and after the last read one Validate decides
    whether any byte may be used.

    Args:
        tools: the worker's.
        request: what the engine will decode.
        ticket: its claim check.
        on_proven: called when the KV is proven, before the engine emits the first token.
    """

    def __init__(
        self,
        tools: HandoverTools,
        request: EngineRequest,
        ticket: KvTicket,
        on_proven: Callable[[HandedOver], None],
    ) -> None:
        config = tools.runtime.config
        self._tools = tools
        self._on_proven = on_proven
        self._runtime = tools.runtime
        self._request = request
        self._ticket = ticket
        self._block_size = config.engine.block_size
        self._num_groups = len(tools.runtime.identity.layer_groups)
        self._lease = Lease(config.heartbeat_s, config.heartbeat_timeout_s, lambda: tools.runtime.host.steps)
        self._reads: KvReads | None = None
        self._reader: KvReader | None = None
        self._peer = ""
        self._running: asyncio.Task[None] | None = None
        self._stopped = False
        self._abandon_reason = ""

    def stop(self, abandon_reason: str = "") -> None:
        """Makes `run` raise CancelledError.

        With a reason the prefill worker is told that the request is over; without, the ticket lives on for
        another decode worker.
        """
        self._stopped = True
        self._abandon_reason = abandon_reason
        if self._running is not None:
            self._running.cancel()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    async def run(self) -> None:
        """Hands the sequence to the engine, in a task of its own.

        Raises WorkFailedError, or CancelledError once stopped; nothing of it is left here then.
        """
        self._running = asyncio.current_task()
        adopted = False
        if self._ticket.num_tokens != self._request.num_context_tokens:
            raise kv_lost(
                f"the ticket covers {self._ticket.num_tokens} tokens, the request has "
                f"{self._request.num_context_tokens}"
            )
        try:
            self._lease.open(self._tools.channels.stub(self._ticket), self._attach())
            if self._stopped:
                # Before it began: attached all the same, so that the prefill worker can be told.
                raise asyncio.CancelledError
            attached = await self._attached()
            if share_cores(self._runtime.endpoint, self._ticket.endpoint, attached.pid):
                self._tools.gathering.expect(self._request.request_id)
            while not self._lease.num_ready:
                await self._lease.news()
            reservation = await self._reserve()
            reads, settled_at = await self._read(reservation)
            await self._lease.validate()
            finished = self._lease.finished
            assert finished is not None
            self._on_proven(
                HandedOver(
                    finished=finished,
                    finished_at=self._lease.finished_at,
                    settled_at=settled_at,
                    reads=reads,
                    chunks=tuple(self._lease.chunks),
                    prefill_pid=attached.pid,
                    decode_pid=os.getpid(),
                    transport=attached.transport,
                )
            )
            logprobs = (
                token_logprobs(finished.first_logprobs) if finished.HasField("first_logprobs") else None
            )
            await self._runtime.host.call(lambda engine: self._adopt(engine, finished, logprobs))
            adopted = True
            self._lease.done()
        except TransferError as error:
            # Whether the process or only the read is lost is told by its heartbeats, but for this one.
            raise kv_lost(f"reading failed: {error}", not isinstance(error, PeerLostError)) from error
        except RequestTooLargeError as error:
            # The engine refused the request itself, and so would any other.
            self._abandon_reason = str(error)
            raise WorkFailedError(decode_pb2.WorkError.KIND_INVALID, str(error)) from error
        except ValueError as error:
            # What the prefill worker named makes no sense: too few blocks, a first token out of range.
            self._abandon_reason = str(error)
            raise kv_lost(f"the prefill worker's handover is not usable: {error}", False) from error
        except EngineStoppedError as error:
            kind = decode_pb2.WorkError.KIND_OVERLOADED
            raise WorkFailedError(kind, str(error), ticket_alive=True) from error
        finally:
            # `close` is not to be cut short.
            self._running = None
            if not adopted:
                self._give_back()

    async def close(self) -> None:
        """Ends the lease's stream; call it once `run` is over. Takes a moment where the peer is slow."""
        await self._lease.close()
        if self._lease.peer_gone:
            self._tools.channels.drop(self._ticket.endpoint)
            if self._reader is not None and self._peer:
                await self._reader.disconnect(self._peer)

    def _adopt(self, engine: Engine, finished: prefill_pb2.Finished, logprobs: TokenLogprobs | None) -> None:
        request_id = self._request.request_id
        engine.adopt(request_id, finished.first_token_id, logprobs, finished.carried)
        self._tools.gathering.adopted(request_id, engine)

    def _attach(self) -> prefill_pb2.Attach:
        return prefill_pb2.Attach(
            ticket_id=self._ticket.ticket_id,
            worker_id=self._runtime.config.worker_id,
            incarnation=self._runtime.config.incarnation,
            identity=identity_to_wire(self._runtime.identity),
            layout=layout_to_wire(self._runtime.layout),
            transports=list(self._tools.readers),
        )

    async def _attached(self) -> prefill_pb2.Attached:
        while (attached := self._lease.attached) is None:
            await self._lease.news()
        try:
            own, giver = self._runtime.identity, identity_from_wire(attached.identity)
            needs_draft = giver.draft or self._runtime.config.engine.speculation.prefill_history
            require_same(own if needs_draft else without_draft(own), giver)
            self._reader = self._tools.readers[attached.transport]
            self._peer = await self._reader.connect(attached.pool)
        except (IdentityMismatchError, LayoutMismatchError) as error:
            kind = decode_pb2.WorkError.KIND_IDENTITY_MISMATCH
            raise WorkFailedError(kind, str(error), ticket_alive=True) from error
        return attached

    async def _reserve(self) -> Reservation:
        waiting = asyncio.create_task(self._tools.room.reserve(self._request))
        waiting.add_done_callback(lambda _: self._lease.poke())
        try:
            while not waiting.done():
                await self._lease.news()
            return waiting.result()
        finally:
            waiting.cancel()

    async def _read(self, reservation: Reservation) -> tuple[ReadTotals, float]:
        """Reads what is lacking as it becomes ready. Returns once all is settled and the prefill finished."""
        assert self._reader is not None
        reads = self._reads = self._reader.open(self._peer)
        failing = asyncio.create_task(reads.failed())
        failing.add_done_callback(lambda _: self._lease.poke())
        try:
            next_page = reservation.num_unread_tokens // self._block_size
            num_pages = len(reservation.block_ids) // self._num_groups
            while True:
                end = self._readable_pages()
                if end > next_page:
                    local, remote = self._pairs(reservation, next_page, end)
                    reads.start(local, remote, min(end * self._block_size, self._ticket.num_tokens))
                    next_page = end
                if self._lease.finished is not None and end == num_pages:
                    break
                await self._lease.news()
                if failing.done():
                    raise failing.result()
            settling = asyncio.create_task(reads.wait())
            settling.add_done_callback(lambda _: self._lease.poke())
            try:
                while not settling.done():
                    await self._lease.news()
                return settling.result(), asyncio.get_running_loop().time()
            finally:
                settling.cancel()
        finally:
            failing.cancel()

    def _pairs(self, reservation: Reservation, first: int, end: int) -> tuple[list[int], list[int]]:
        """Own blocks of the pages [first, end) that are to be read, and those to read them from.

        Raises ValueError where the prefill worker has let one of these go, or never named it.
        """
        part = slice(first * self._num_groups, end * self._num_groups)
        own, named = reservation.block_ids[part], self._lease.block_ids[part]
        if len(named) != len(own):
            raise ValueError(f"{len(own)} blocks are to be read, but {len(named)} are named")
        # What lies behind its group's window needs no block here, and may be let go there.
        pairs = [(ours, theirs) for ours, theirs in zip(own, named, strict=True) if ours]
        if not all(theirs for _, theirs in pairs):
            raise ValueError("a block within the window of the next token was let go")
        return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]

    def _readable_pages(self) -> int:
        """Leading pages that are fully written: the last, partial one only with the last token."""
        num_ready = self._lease.num_ready
        if num_ready >= self._ticket.num_tokens:
            return -(-num_ready // self._block_size)
        return num_ready // self._block_size

    def _give_back(self) -> None:
        # The engine, should it wait for this one, looks again when it is called below.
        self._tools.gathering.forget(self._request.request_id)
        unsettled = self._reads.give_up() if self._reads is not None else frozenset()
        if unsettled:
            logger.warning(
                "blocks in quarantine",
                extra=fields(request_id=self._request.request_id, blocks=len(unsettled)),
            )
        # Nothing may be awaited between these two: the reader reports settled blocks in a later turn of
        # the event loop, and they must be in the engine's quarantine by then.
        self._runtime.host.post(lambda engine: engine.abandon(self._request.request_id, unsettled))
        if self._abandon_reason:
            self._lease.abandon(self._abandon_reason)
