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

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # There is one policy of retries, this package's own: never after the first token.
    ("grpc.enable_retries", 0),
    # gRPC's own pause before it connects again is a second and more: longer than ours.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # One subchannel a client: the reconnect pauses of others that use the same address do not count.
    ("grpc.use_local_subchannel_pool", 1),
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
    return Tokenization(tuple(response.token_ids), response.max_model_len)


def models(response: inference_pb2.ListModelsResponse) -> tuple[Model, ...]:
    """The answer to ListModels."""
    return tuple(Model(model.id, model.max_model_len, model.created_unix_s) for model in response.models)
