"""An HTTP client that can hang up at any moment, as a browser that is closed does."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from types import TracebackType
from urllib.parse import urlsplit


class OpenCall:
    """A POST that was sent and whose answer nobody has read. Leaving the `with` block hangs up."""

    def __init__(self, url: str, body: Mapping[str, object]) -> None:
        parts = urlsplit(url)
        payload = json.dumps(body).encode()
        head = (
            f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\n\r\n"
        )
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=60.0)
        self._socket.sendall(head.encode() + payload)

    def read_some(self) -> bytes:
        """Waits for the next piece of the answer; empty at its end."""
        return self._socket.recv(4096)

    def __enter__(self) -> OpenCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
