"""One `Decode.Session` stream to one decode worker: it carries every request of this router both ways."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import grpc

from kvrelay.v1 import decode_pb2, prefill_pb2
from kvrelay.v1.decode_pb2_grpc import DecodeStub
from router.subscription import SessionLost, Subscription
from telemetry.logs import fields

_logger = logging.getLogger(__name__)

_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 1.0
# Heartbeats in one time-out.
_BEATS = 6


class SessionLostError(Exception):
    """The stream is broken or silent: whatever the worker does for this router is lost."""


_SessionCall = grpc.aio.StreamStreamCall[decode_pb2.DecodeCommand, decode_pb2.DecodeEvents]


class DecodeSession:
    """Keeps the stream open, with heartbeats both ways, and shares it out among requests.

    A stream that breaks, or is silent for `heartbeat_timeout_s`, loses all its subscriptions at once: what
    the worker sent meanwhile cannot be had, so the requests start anew elsewhere. When the stream is back the
    worker is told to cancel what it may still run of them.

    Args:
        stub: the worker's service.
        router_id: this router's name.
        worker_id: the worker's name, for logs.
        heartbeat_timeout_s: silence after which the worker counts as lost.
        on_change: called whenever `connected` changes.
    """

    def __init__(
        self,
        stub: DecodeStub,
        router_id: str,
        worker_id: str,
        heartbeat_timeout_s: float,
        on_change: Callable[[], None],
    ) -> None:
        self._stub = stub
        self._router_id = router_id
        self._worker_id = worker_id
        self._timeout_s = heartbeat_timeout_s
        self._on_change = on_change
        self._routes: dict[str, Subscription] = {}
        self._outbox: asyncio.Queue[decode_pb2.DecodeCommand] | None = None
        self._orphans: dict[str, int] = {}
        self._messages = 0
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to connect."""
        self._task = asyncio.create_task(self._run())

    @property
    def connected(self) -> bool:
        """Whether requests can be submitted."""
        return self._outbox is not None

    def submit(self, submit: decode_pb2.Submit) -> Subscription:
        """Sends a request on its way. Raises SessionLostError where the stream is down."""
        if self._outbox is None:
            raise SessionLostError("no stream to the worker")
        subscription = Subscription(submit.request.request_id, submit.request.attempt)
        self._routes[subscription.request_id] = subscription
        self._outbox.put_nowait(decode_pb2.DecodeCommand(submit=submit))
        return subscription

    def cancel(self, subscription: Subscription, reason: str) -> None:
        """Tells the worker to end the attempt, whose events go on until its end. No error if it has ended."""
        if self._outbox is not None and self.carries(subscription):
            self._outbox.put_nowait(_cancel(subscription.request_id, subscription.attempt, reason))

    def carries(self, subscription: Subscription) -> bool:
        """Whether the attempt runs: neither has it ended nor is the stream that it was sent on lost."""
        return self._routes.get(subscription.request_id) is subscription

    def drop(self, subscription: Subscription, reason: str) -> None:
        """Cancels the attempt and takes no more of its events. No error if it has ended."""
        self.cancel(subscription, reason)
        if self.carries(subscription):
            del self._routes[subscription.request_id]

    async def close(self) -> None:
        """Ends the stream; subscriptions that are left are lost."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        backoff_s = _BACKOFF_MIN_S
        try:
            while True:
                messages = self._messages
                reason = await self._serve_stream()
                if self._messages > messages:
                    backoff_s = _BACKOFF_MIN_S
                self._lose(reason)
                await asyncio.sleep(backoff_s)
                backoff_s = min(_BACKOFF_MAX_S, 2 * backoff_s)
        finally:
            self._lose("the session was closed")

    async def _serve_stream(self) -> str:
        """Runs one stream until it ends; returns why it did."""
        call = self._stub.Session()
        outbox: asyncio.Queue[decode_pb2.DecodeCommand] = asyncio.Queue()
        tasks: list[asyncio.Task[str]] = []
        try:
            async with asyncio.timeout(self._timeout_s):
                await call.wait_for_connection()
                await call.write(decode_pb2.DecodeCommand(hello=decode_pb2.Hello(router_id=self._router_id)))
            for request_id, attempt in self._orphans.items():
                outbox.put_nowait(_cancel(request_id, attempt, "the router lost the stream"))
            self._orphans.clear()
            self._outbox = outbox
            self._on_change()
            tasks = [
                asyncio.create_task(self._read(call)),
                asyncio.create_task(self._write(call, outbox)),
                asyncio.create_task(self._beat(outbox)),
            ]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        except TimeoutError:
            return f"no connection within {self._timeout_s} s"
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        # Whatever nobody foresaw, such as a message that cannot be read, costs this stream, not the worker.
        except Exception as error:
            _logger.exception("decode session failed", extra=fields(worker_id=self._worker_id))
            return f"failed in the router: {error!r}"
        finally:
            call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, call: _SessionCall) -> str:
        try:
            async for message in call:
                self._messages += 1
                self._deliver(message)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return "the worker ended the stream"

    def _deliver(self, message: decode_pb2.DecodeEvents) -> None:
        for tokens in message.tokens:
            subscription = self._routes.get(tokens.request_id)
            if subscription is not None and subscription.attempt == tokens.attempt:
                subscription.put(tokens)
        for end in message.ends:
            subscription = self._routes.get(end.request_id)
            if subscription is not None and subscription.attempt == end.attempt:
                subscription.put(end)
                del self._routes[end.request_id]

    async def _write(self, call: _SessionCall, outbox: asyncio.Queue[decode_pb2.DecodeCommand]) -> str:
        try:
            while True:
                await call.write(await outbox.get())
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except asyncio.InvalidStateError:
            # What grpc raises for a write to a call that has ended in good order.
            return "the worker ended the stream"

    async def _beat(self, outbox: asyncio.Queue[decode_pb2.DecodeCommand]) -> str:
        """Sends heartbeats and listens for the worker's.

        Silence is counted in beats and not by the clock: while this process itself stands still, messages
        wait unread, and that must not be taken for the worker's silence.
        """
        beats = 0
        while True:
            messages = self._messages
            outbox.put_nowait(decode_pb2.DecodeCommand(heartbeat=prefill_pb2.Heartbeat(steps=beats)))
            await asyncio.sleep(self._timeout_s / _BEATS)
            beats = beats + 1 if self._messages == messages else 0
            if beats >= _BEATS:
                return f"silent for {self._timeout_s} s"

    def _lose(self, reason: str) -> None:
        lost = list(self._routes.values())
        self._routes.clear()
        for subscription in lost:
            self._orphans[subscription.request_id] = subscription.attempt
            subscription.put(SessionLost(reason))
        if self._outbox is not None:
            self._outbox = None
            level = logging.INFO if self._closing else logging.WARNING
            about = fields(worker_id=self._worker_id, reason=reason, requests=len(lost))
            _logger.log(level, "decode session ended", extra=about)
            self._on_change()


def _cancel(request_id: str, attempt: int, reason: str) -> decode_pb2.DecodeCommand:
    return decode_pb2.DecodeCommand(
        cancel=decode_pb2.Cancel(request_id=request_id, attempt=attempt, reason=reason)
    )
