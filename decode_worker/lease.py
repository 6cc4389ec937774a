"""The decode worker's end of one Follow stream: the lease on a prefill worker's blocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc

from decode_worker.errors import WorkFailedError, kv_lost
from kvrelay.v1 import decode_pb2, prefill_pb2, prefill_pb2_grpc
from worker.liveness import SilenceTimer


class Lease:
    """One attachment to one ticket.

    Everything that the prefill worker said is kept here; the handover waits with `news` and looks. A lease
    that fails stays failed: `failure` is set and `news` raises it. Nothing read under it may then be used.
    Whatever else the handover waits for wakes it with `poke`, so that it never waits for two things.

    Attributes:
        attached: the prefill worker's answer to Attach.
        num_ready: tokens whose KV is written.
        block_ids: the prefill worker's physical blocks so far, in token order.
        chunks: every KvReady as it came, for the trace.
        finished: the end of the prefill.
        finished_at: when it came, seconds on the event loop's clock.
        failure: why the lease is lost.
        peer_gone: the prefill worker's process does not answer any more.
    """

    def __init__(self, heartbeat_s: float, timeout_s: float, steps: Callable[[], int]) -> None:
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        self._steps = steps
        self._outgoing: asyncio.Queue[prefill_pb2.FollowRequest | None] = asyncio.Queue()
        self._news = asyncio.Event()
        self._closing = False
        self._answer: bool | None = None
        self._timer: SilenceTimer | None = None
        self._reader: asyncio.Task[None] | None = None
        self._call: grpc.aio.StreamStreamCall[prefill_pb2.FollowRequest, prefill_pb2.FollowEvent] | None = (
            None
        )
        self.attached: prefill_pb2.Attached | None = None
        self.num_ready = 0
        self.block_ids: list[int] = []
        self.chunks: list[prefill_pb2.KvReady] = []
        self.finished: prefill_pb2.Finished | None = None
        self.finished_at = 0.0
        self.failure: WorkFailedError | None = None
        self.peer_gone = False

    def open(self, stub: prefill_pb2_grpc.PrefillStub, attach: prefill_pb2.Attach) -> None:
        """Opens the stream and asks for the ticket; `attached` or `failure` follows."""
        self._send(prefill_pb2.FollowRequest(attach=attach))
        self._call = stub.Follow(self._requests())
        self._timer = SilenceTimer(self._timeout_s, self._silent)
        self._reader = asyncio.create_task(self._read())

    async def news(self) -> None:
        """Waits until something changed. Raises WorkFailedError once the lease is lost."""
        await self._news.wait()
        self._news.clear()
        self.check()

    def poke(self) -> None:
        """Makes `news` return."""
        self._news.set()

    def check(self) -> None:
        """Raises WorkFailedError if the lease is lost."""
        if self.failure is not None:
            raise self.failure

    async def validate(self) -> None:
        """Asks whether all that was read was pinned until now.

        Returns on a yes only. Raises WorkFailedError for a no and for no answer in time.
        """
        assert self.attached is not None
        generation = self.attached.generation
        self._send(prefill_pb2.FollowRequest(validate=prefill_pb2.Validate(generation=generation)))
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._answer is None:
                    await self.news()
        except TimeoutError:
            self._fail(kv_lost(f"no answer to Validate within {self._timeout_s} s"))
        self.check()
        if not self._answer:
            self._fail(kv_lost(f"generation {generation} of the lease is not valid any more"))
        self.check()

    def done(self) -> None:
        """The KV was read and validated; the prefill worker may let the ticket go."""
        if self.attached is not None:
            self._end(prefill_pb2.FollowRequest(done=prefill_pb2.Done(generation=self.attached.generation)))

    def abandon(self, reason: str) -> None:
        """The request is over; the prefill stops at its next step."""
        self._end(prefill_pb2.FollowRequest(abandon=prefill_pb2.Abandon(reason=reason)))

    async def close(self) -> None:
        """Ends the stream. After `done` or `abandon` it waits, for a bounded time, until that was heard;
        otherwise the stream breaks off, and the ticket lives on for another decode worker."""
        if self._call is None or self._reader is None or self._timer is None:
            return
        if self._closing and self.failure is None:
            await asyncio.wait({self._reader}, timeout=self._timeout_s)
        self._timer.stop()
        self._closing = True
        self._call.cancel()
        await asyncio.wait({self._reader})

    def _send(self, message: prefill_pb2.FollowRequest) -> None:
        self._outgoing.put_nowait(message)

    def _end(self, message: prefill_pb2.FollowRequest) -> None:
        if not self._closing:
            self._closing = True
            self._outgoing.put_nowait(message)
            self._outgoing.put_nowait(None)

    async def _requests(self) -> AsyncIterator[prefill_pb2.FollowRequest]:
        while True:
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    message = await self._outgoing.get()
            except TimeoutError:
                message = prefill_pb2.FollowRequest(heartbeat=prefill_pb2.Heartbeat(steps=self._steps()))
            if message is None:
                return
            yield message

    async def _read(self) -> None:
        assert self._call is not None
        assert self._timer is not None
        try:
            async for event in self._call:
                self._timer.heard()
                self._take(event)
                self._news.set()
            failure = kv_lost("the prefill worker closed the lease")
        except grpc.aio.AioRpcError as error:
            failure = self._failure_of(error)
        except asyncio.CancelledError:
            # grpc raises it into the reader when the call itself is cancelled, by `close` or `_fail`.
            failure = kv_lost("the lease was given up")
        self._timer.stop()
        self._fail(failure)

    def _take(self, event: prefill_pb2.FollowEvent) -> None:
        match event.WhichOneof("message"):
            case "attached":
                self.attached = event.attached
            case "kv_ready":
                self.num_ready = event.kv_ready.num_tokens
                self.block_ids.extend(event.kv_ready.block_ids)
                self.chunks.append(event.kv_ready)
            case "finished":
                self.finished = event.finished
                self.finished_at = asyncio.get_running_loop().time()
            case "validated":
                if self.attached is not None and event.validated.generation == self.attached.generation:
                    self._answer = event.validated.valid
            case "revoked":
                kind = (
                    decode_pb2.WorkError.KIND_KV_LOST
                    if event.revoked.retryable
                    else decode_pb2.WorkError.KIND_INTERNAL
                )
                self._fail(WorkFailedError(kind, f"the prefill worker revoked it: {event.revoked.reason}"))

    def _failure_of(self, error: grpc.aio.AioRpcError) -> WorkFailedError:
        if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
            kind = decode_pb2.WorkError.KIND_IDENTITY_MISMATCH
            return WorkFailedError(kind, error.details() or "identities differ", ticket_alive=True)
        self.peer_gone = error.code() == grpc.StatusCode.UNAVAILABLE
        return kv_lost(f"the lease broke: {error.code().name}: {error.details()}")

    def _silent(self) -> None:
        self._fail(kv_lost(f"nothing from the prefill worker for {self._timeout_s} s"))

    def _fail(self, failure: WorkFailedError) -> None:
        if self.failure is None:
            self.failure = failure
            self._news.set()
