"""Errors of the shared request path as gRPC statuses, as inference.proto promises them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import grpc

from router.errors import InvalidRequestError, ModelNotFoundError, clipped
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


# Clients refuse headers of more than 8 KiB together, by default, and with them the whole status.
_MAX_MESSAGE_BYTES = 4096
# A character of four bytes, each written as %XX.
_MOST_BYTES = 12


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
        return RpcStatus(_GENERATION[error.kind], _sendable(error.message), metadata)
    code = grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(error, ModelNotFoundError):
        code = grpc.StatusCode.NOT_FOUND
    named = error.param is None or error.param in error.message
    return RpcStatus(code, _sendable(error.message if named else f"{error.param}: {error.message}"))


def _sendable(message: str) -> str:
    """The message, or its two ends where the header that carries it would be too long."""
    printable = sum(" " <= character <= "~" and character != "%" for character in message)
    if printable + _MOST_BYTES * (len(message) - printable) <= _MAX_MESSAGE_BYTES:
        return message
    return clipped(message, _MAX_MESSAGE_BYTES // _MOST_BYTES)
