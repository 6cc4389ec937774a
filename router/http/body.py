"""Reads what a client sent: the body with a size limit, then JSON, then the time limit."""

from __future__ import annotations

import asyncio
import math
import time

from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from router.http.errors import HttpRequestError
from router.http.schema.common import MAX_TIMEOUT_S

# Time for one body to arrive; a client that trickles may not hold a connection for ever.
BODY_TIMEOUT_S = 60.0


def _too_large(max_bytes: int) -> HttpRequestError:
    return HttpRequestError(
        413, f"The body is larger than the {max_bytes} bytes that are allowed.", "body_too_large"
    )


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body. Raises HttpRequestError 413 as soon as it is known to be too large, 408 if it is too slow."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                chunks.append(chunk)
    except TimeoutError:
        raise HttpRequestError(
            408, f"The request's body did not arrive within {BODY_TIMEOUT_S:g} s.", "body_timeout"
        ) from None
    except ClientDisconnect:
        # Nobody is left to read the answer; it only ends the handler.
        raise HttpRequestError(400, "The client left while sending.", "client_disconnected") from None
    return b"".join(chunks)


def parse_object(body: bytes) -> dict[str, object]:
    """The JSON object in a body. Raises HttpRequestError, also for invalid UTF-8, NaN and infinity."""
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise HttpRequestError(400, f"The body is not valid JSON: {error}.", "invalid_json") from None
    if not isinstance(value, dict):
        raise HttpRequestError(400, "The body must be a JSON object.", "invalid_json")
    return value


def deadline_of(request: Request, timeout_s: float | None) -> float | None:
    """Seconds since 1970 at which the request must end; None for never.

    Args:
        request: its header `x-request-timeout` (seconds) counts too.
        timeout_s: the body's `timeout`. The shorter one holds.

    Raises HttpRequestError for a bad header.
    """
    header = request.headers.get("x-request-timeout")
    limits = [] if timeout_s is None else [timeout_s]
    if header is not None:
        try:
            seconds = float(header)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds <= MAX_TIMEOUT_S:
            raise HttpRequestError(
                400,
                f"Invalid 'x-request-timeout': {header!r} is no number of seconds up to {MAX_TIMEOUT_S:g}.",
                "invalid_value",
                "x-request-timeout",
            )
        limits.append(seconds)
    return time.time() + min(limits) if limits else None
