"""Where the router listens: binding, and telling others by a file."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path


class PortInUseError(OSError):
    """An address cannot be listened on; most often another process has the port. The message says it all."""


def join_address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one. Raises PortInUseError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise PortInUseError(
            f"cannot listen on {join_address(host, port)}: {error.strerror or error}"
        ) from error


@dataclass(frozen=True, slots=True)
class Addresses:
    """A running router: `host:port` of its three doors, and its process."""

    http: str
    grpc: str
    admin: str
    pid: int

    def write(self, path: Path) -> None:
        """Writes the file in one piece: whoever sees it sees all of it. Raises OSError."""
        part = path.with_name(f"{path.name}.{self.pid}.part")
        part.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(part, path)
