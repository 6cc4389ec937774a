"""What every HTTP call passes: request id, API key, access log, metrics, and the last net for errors."""

from __future__ import annotations

import logging
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.auth import MESSAGE, OPEN_PATHS, ApiKeys
from router.door_metrics import DoorMetrics
from router.http.errors import HttpError, internal_error
from router.prepare import is_request_id, new_request_id
from telemetry.logs import bind_request, fields

logger = logging.getLogger(__name__)

# Probes and scrapes come every few seconds; their lines would bury the others.
_QUIET_PATHS = frozenset(("/health", "/ping", "/ready", "/metrics"))
# Status of a call whose client left before an answer began, as nginx has it in logs.
_CLIENT_LEFT = 499


class CallMiddleware:
    """Plain ASGI, so that streaming and disconnects pass through untouched.

    The client's `x-request-id` is taken over where it is 1 to 128 printable ASCII characters, else replaced
    (proxies add what they like); every answer carries the header. Handlers find the id and the time of
    arrival in `request.state.request_id` and `request.state.arrived_at`.

    Args:
        app: what is inside.
        keys: the router's keys.
        metrics: counts calls.
        known_paths: paths that may be named in metrics.
    """

    def __init__(
        self, app: ASGIApp, keys: ApiKeys, metrics: DoorMetrics, known_paths: frozenset[str]
    ) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics
        self._known_paths = known_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        arrived_at = time.monotonic()
        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        request_id = asked if is_request_id(asked) else new_request_id()
        scope.setdefault("state", {}).update(request_id=request_id, arrived_at=arrived_at)
        status = 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        path: str = scope["path"]
        with bind_request(request_id):
            self._metrics.began("http")
            try:
                if path not in OPEN_PATHS and not self._keys.accepts(
                    headers.get("authorization", "").encode("latin-1")
                ):
                    await _unauthorized().response()(scope, receive, send_on)
                else:
                    await self._app(scope, receive, send_on)
            # The last net: whatever a handler did not foresee becomes a 500, and the log gets the trace.
            except Exception:
                logger.exception("call failed", extra=fields(path=path))
                if status:
                    raise
                await internal_error().response()(scope, receive, send_on)
            finally:
                seconds = time.monotonic() - arrived_at
                call = path if path in self._known_paths else "other"
                self._metrics.ended("http", call, str(status or _CLIENT_LEFT), seconds)
                if path not in _QUIET_PATHS:
                    logger.info(
                        "call",
                        extra=fields(
                            method=scope["method"],
                            path=path,
                            status=status or _CLIENT_LEFT,
                            seconds=round(seconds, 6),
                        ),
                    )


def _unauthorized() -> HttpError:
    return HttpError(
        401,
        MESSAGE,
        "invalid_request_error",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )
