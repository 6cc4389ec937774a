"""Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`.

| what | status | type | code |
|---|---|---|---|
| bad request | 400 | invalid_request_error | its own |
| unknown model, body too slow, body too large | 404, 408, 413 | invalid_request_error | its own |
| wrong or missing key | 401 | invalid_request_error | invalid_api_key |
| queue full | 429, Retry-After | rate_limit_error | overloaded |
| unforeseen | 500 | server_error | internal_error |
| no worker, shutting down | 503, Retry-After | server_error | unavailable |
| cancelled by the router | 503 | server_error | cancelled |
| deadline passed | 504, x-should-retry: false | timeout_error | deadline_exceeded |

A deadline is 504 and not 408: the client was in time, the cluster was not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field
from pydantic_core import to_json
from starlette.responses import Response
from typing_extensions import TypedDict

from router.described import told
from router.errors import InvalidRequestError, ModelNotFoundError
from router.generation import ErrorKind, GenerationError


class ErrorDetail(TypedDict):
    """What went wrong."""

    message: Annotated[str, Field(description=told("What is wrong, and what is allowed.", "any text"))]
    type: Annotated[
        str,
        Field(
            description=told(
                "Sort of error.",
                "`invalid_request_error`, `rate_limit_error`, `server_error` or `timeout_error`",
            )
        ),
    ]
    param: Annotated[
        str | None,
        Field(
            description=told("The parameter at fault; null for the request as a whole.", "any text or null")
        ),
    ]
    code: Annotated[
        str | None, Field(description=told("Short name of the error, for programs.", "any text or null"))
    ]


class ErrorBody(TypedDict):
    """Body of every answer that is not 2xx, and the data of an error inside a stream."""

    error: Annotated[ErrorDetail, Field(description=told("What went wrong.", "an object"))]


@dataclass(frozen=True, slots=True)
class HttpError:
    """One error on its way out."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> ErrorBody:
        """As OpenAI's clients read it."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The whole answer."""
        return Response(to_json(self.body()), self.status, self.headers, "application/json")


class HttpRequestError(InvalidRequestError):
    """A bad request with a status of its own."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message, param, code)
        self.status = status


_GENERATION: dict[ErrorKind, tuple[int, str, str]] = {
    ErrorKind.OVERLOADED: (429, "rate_limit_error", "overloaded"),
    ErrorKind.UNAVAILABLE: (503, "server_error", "unavailable"),
    ErrorKind.DEADLINE: (504, "timeout_error", "deadline_exceeded"),
    ErrorKind.INVALID: (400, "invalid_request_error", "invalid_value"),
    ErrorKind.INTERNAL: (500, "server_error", "internal_error"),
    ErrorKind.CANCELLED: (503, "server_error", "cancelled"),
}


def internal_error() -> HttpError:
    """What a client hears of an error that nobody foresaw; the log holds the rest."""
    return HttpError(500, "The server failed to handle this request.", "server_error", code="internal_error")


def http_error(error: InvalidRequestError | GenerationError) -> HttpError:
    """Status and body of an error of the shared request path."""
    if isinstance(error, GenerationError):
        status, kind, code = _GENERATION[error.kind]
        headers = {}
        if error.kind is ErrorKind.DEADLINE:
            # OpenAI's clients repeat a 504, which would give the request its whole time once more.
            headers["x-should-retry"] = "false"
        if error.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        return HttpError(status, error.message, kind, None, code, headers)
    status = 400
    if isinstance(error, ModelNotFoundError):
        status = 404
    elif isinstance(error, HttpRequestError):
        status = error.status
    return HttpError(status, error.message, "invalid_request_error", error.param, error.code)
