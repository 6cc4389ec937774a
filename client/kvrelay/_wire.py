"""What both clients tell gRPC, and how they read its errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from kvrelay.errors import KvrelayError, from_status
from kvrelay.types import Model, Tokenization
from kvrelay.v1 import inference_pb2
from kvrelay.v1.inference_pb2_grpc import InferenceStub

_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # There is one policy of retries, this package's own: never after the first token.
    ("grpc.enable_retries", 0),
    # gRPC's own pause before it connects again is a second and more: longer than ours.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # One subchannel a client: the reconnect pauses of others that use the same address do not count.
    ("grpc.use_local_subchannel_pool", 1),
    # An answer may take its time, with no data either way: ask whether the router lives all the same.
    ("grpc.http2.max_pings_without_data", 0),
)


def channel_options(keepalive_s: float) -> tuple[tuple[str, int], ...]:
    """Options of every channel.

    A router that vanished without a word is asked after `keepalive_s` of silence and has as long to answer.
    Raises ValueError for a time that routers do not allow.
    """
    if not keepalive_s >= 1:
        raise ValueError(f"keepalive is {keepalive_s!r}; routers allow 1 second or more")
    milliseconds = min(round(keepalive_s * 1000), 2**31 - 1)
    return (
        *_CHANNEL_OPTIONS,
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        # Otherwise a minute for whatever the time-out of keepalive says.
        ("grpc.http2.ping_timeout_ms", milliseconds),
    )


# The generated class has no types.
make_stub: Callable[[grpc.Channel | grpc.aio.Channel], Any] = InferenceStub


def call_metadata(api_key: str | None) -> Sequence[tuple[str, str]]:
    """Metadata of every call."""
    return () if api_key is None else (("authorization", f"Bearer {api_key}"),)


def translated(error: grpc.RpcError) -> KvrelayError:
    """This package's error for one of gRPC's, which becomes its cause."""
    # Pairs, whatever the stubs say; None where the call never reached a server.
    metadata: Any = error.trailing_metadata() or ()
    failure = from_status(error.code(), error.details() or "", metadata)
    failure.__cause__ = error
    return failure


def tokenization(response: inference_pb2.TokenizeResponse) -> Tokenization:
    """The answer to Tokenize."""
    return Tokenization(tuple(response.token_ids), response.max_model_len, tuple(response.token_strs))


def model_of(response: inference_pb2.Model) -> Model:
    """The answer to GetModel."""
    return Model(response.id, response.max_model_len, response.created_unix_s)


def models(response: inference_pb2.ListModelsResponse) -> tuple[Model, ...]:
    """The answer to ListModels."""
    return tuple(map(model_of, response.models))
