"""Errors of the shared request path as gRPC statuses, as inference.proto promises them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import grpc

from router.errors import InvalidRequestError, ModelNotFoundError
from router.generation import ErrorKind, GenerationError

_GENERATION: dict[ErrorKind, grpc.StatusCode] = {
    ErrorKind.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.INTERNAL: grpc.StatusCode.INTERNAL,
    # Not CANCELLED: that would tell the client that it cancelled.
    ErrorKind.CANCELLED: grpc.StatusCode.UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class RpcStatus:
    """How a call ends: code, message, trailing metadata (`retry-after` in seconds)."""

    code: grpc.StatusCode
    details: str
    metadata: tuple[tuple[str, str], ...] = ()


def rpc_status(error: InvalidRequestError | GenerationError) -> RpcStatus:
    """The message names the field at fault where there is one."""
    if isinstance(error, GenerationError):
        metadata: tuple[tuple[str, str], ...] = ()
        if error.retry_after_s is not None:
            metadata = (("retry-after", str(max(1, math.ceil(error.retry_after_s)))),)
        return RpcStatus(_GENERATION[error.kind], error.message, metadata)
    code = grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(error, ModelNotFoundError):
        code = grpc.StatusCode.NOT_FOUND
    named = error.param is None or error.param in error.message
    return RpcStatus(code, error.message if named else f"{error.param}: {error.message}")
