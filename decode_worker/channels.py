"""One gRPC channel to each prefill worker, kept between handovers."""

from __future__ import annotations

import asyncio

import grpc

from kvrelay.v1 import prefill_pb2_grpc

_MAX_MESSAGE_BYTES = 64 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    # A restarted worker must not inherit the back-off of the process before it.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class PrefillChannels:
    """Channels by endpoint."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def stub(self, endpoint: str) -> prefill_pb2_grpc.PrefillStub:
        """The Prefill service behind an endpoint; connects when it is first called."""
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        return prefill_pb2_grpc.PrefillStub(channel)

    def drop(self, endpoint: str) -> None:
        """Forgets an endpoint whose process is gone; what still uses the channel ends with an error."""
        channel = self._channels.pop(endpoint, None)
        if channel is not None:
            task = asyncio.create_task(channel.close(None))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes all channels."""
        for endpoint in list(self._channels):
            self.drop(endpoint)
        if self._closing:
            await asyncio.wait(self._closing)
