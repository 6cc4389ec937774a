from __future__ import annotations

import socket

import pytest

from cluster.ports import PortInUseError, require_free


def test_a_taken_port_is_named_with_its_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        expected = rf"router\.http_port: port {port} of 127\.0\.0\.1.*; 0 takes"
        with pytest.raises(PortInUseError, match=expected):
            require_free("127.0.0.1", port, "router.http_port")
    require_free("127.0.0.1", port, "router.http_port")
    require_free("127.0.0.1", 0, "router.http_port")


@pytest.mark.parametrize(
    ("host", "expected"), [("192.0.2.1", "cannot be used"), ("no.such.host.invalid", "not an address")]
)
@pytest.mark.parametrize("port", [0, 8000])
def test_an_address_of_another_machine(host: str, port: int, expected: str) -> None:
    with pytest.raises(PortInUseError, match=expected):
        require_free(host, port, "router.http_port")
