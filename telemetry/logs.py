"""Structured logs: one JSON object a line, or short text for a person at a terminal.

Fields go in as `logger.info("event", extra=fields(request_id=..., ...))`; the request id of the current
task, if one is bound with `bind_request`, is added by itself.
"""

from __future__ import annotations

import contextvars
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
_FIELDS = "kvrelay_fields"

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("json", "text")


def fields(**values: object) -> dict[str, dict[str, object]]:
    """`extra=` argument that carries structured fields."""
    return {_FIELDS: values}


@contextmanager
def bind_request(request_id: str) -> Iterator[None]:
    """Adds `request_id` to every line logged by this task inside the block."""
    token = _request_id.set(request_id)
    try:
        yield
    finally:
        _request_id.reset(token)


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    values: dict[str, object] = dict(getattr(record, _FIELDS, {}))
    request_id = _request_id.get()
    if request_id:
        values.setdefault("request_id", request_id)
    return values


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (s since 1970), level, logger, event, fields, exception."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """Renders one record."""
        line: dict[str, object] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "component": self._component,
            "logger": record.name,
            "event": record.getMessage(),
            **_fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """`12:00:00 component level event key=value ...`."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """Renders one record."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        pairs = "".join(f" {key}={value}" for key, value in _fields_of(record).items())
        text = f"{clock} {self._component} {record.levelname.lower()} {record.getMessage()}{pairs}"
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def configure(component: str, level: str = "info", style: str = "json") -> None:
    """Sends all logs of this process to stderr. Raises ValueError for an unknown level or style."""
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is not one of {', '.join(LEVELS)}")
    if style not in FORMATS:
        raise ValueError(f"log format {style!r} is not one of {', '.join(FORMATS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(component) if style == "json" else TextFormatter(component))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
