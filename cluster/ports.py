"""Ports, looked at before anything is started."""

from __future__ import annotations

import errno
import socket


class PortInUseError(Exception):
    """A port that was asked for cannot be bound; the message says which and why."""


def require_free(host: str, port: int, key: str) -> None:
    """Raises PortInUseError where `port` of `host` cannot be bound now. 0 is free on every own address.

    Args:
        host: address to bind.
        port: TCP port.
        key: the setting that names it, for the message.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise PortInUseError(f"router.host: {host!r} is not an address of this machine: {error}") from None
    with socket.socket(family, kind, protocol) as probe:
        # As servers do: connections that were closed a moment ago do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            advice = "; 0 takes a free one" if error.errno == errno.EADDRINUSE else ""
            raise PortInUseError(
                f"{key}: port {port} of {host} cannot be used: {error.strerror}{advice}"
            ) from None
