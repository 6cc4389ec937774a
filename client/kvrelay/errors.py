"""What can go wrong, one class for each thing that a caller may want to do about it."""

from __future__ import annotations

from collections.abc import Iterable

import grpc


class KvrelayError(Exception):
    """Base of all errors of this package. The message is the server's own where there is one.

    Attributes:
        code: name of the gRPC status, such as "NOT_FOUND"; empty for errors that were found locally.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class InvalidRequestError(KvrelayError):
    """The request cannot be served as it is: a parameter is out of range, the prompt is too long."""


class ModelNotFoundError(KvrelayError):
    """No such model is served."""


class AuthenticationError(KvrelayError):
    """The API key is missing or not accepted."""


class OverloadedError(KvrelayError):
    """The queue is full.

    Attributes:
        retry_after: seconds after which the server asks to be tried again; None where it does not say.
    """

    def __init__(self, message: str, code: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, code)
        self.retry_after = retry_after


class DeadlineExceededError(KvrelayError):
    """`timeout` passed before the answer was complete."""


class RequestCancelledError(KvrelayError):
    """The request was cancelled: by `cancel()`, by closing the stream, or by the server."""


class UnavailableError(KvrelayError):
    """No endpoint can be reached, or the connection broke after the answer had begun."""


class ServerError(KvrelayError):
    """The server failed in a way that is not the caller's doing."""


_CLASSES: dict[grpc.StatusCode, type[KvrelayError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: ModelNotFoundError,
    grpc.StatusCode.UNAUTHENTICATED: AuthenticationError,
    grpc.StatusCode.PERMISSION_DENIED: AuthenticationError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.CANCELLED: RequestCancelledError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
}
_RETRY_AFTER = "retry-after"
# gRPC's own words when a message exceeds the receiver's limit; it has no status of its own.
_TOO_LARGE = "message larger than max"
# Its words, among others, when the deadline passes on this side.
_DEADLINE = "Deadline Exceeded"


def _retry_after(metadata: Iterable[tuple[str, str | bytes]]) -> float | None:
    for key, value in metadata:
        if key == _RETRY_AFTER:
            try:
                return float(value)
            except ValueError:
                return None
    return None


def from_status(
    code: grpc.StatusCode, details: str, metadata: Iterable[tuple[str, str | bytes]]
) -> KvrelayError:
    """The error that stands for a gRPC status."""
    message = details or code.name
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and _DEADLINE in details:
        message = "the timeout passed before the answer was complete"
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if _TOO_LARGE in details:
            return InvalidRequestError(message, code.name)
        return OverloadedError(message, code.name, _retry_after(metadata))
    return _CLASSES.get(code, ServerError)(message, code.name)
