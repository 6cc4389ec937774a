"""A router that vanishes without a word."""

from __future__ import annotations

import pytest

from kvrelay import AsyncClient, Client, UnavailableError
from tests.client.scripted_server import Server, serving, stall
from tests.client.silent_relay import SilentRelay


def test_a_silent_router_is_unavailable() -> None:
    with (
        serving(Server(stall)) as server,
        SilentRelay(server.port).running() as relay,
        Client(f"127.0.0.1:{relay.port}", retries=0, keepalive=1.0) as client,
    ):
        stream = client.stream("go")
        assert next(stream).text == "Hel"
        relay.silence()
        with pytest.raises(UnavailableError):
            next(stream)


async def test_a_silent_router_is_unavailable_also_for_asyncio() -> None:
    with serving(Server(stall)) as server, SilentRelay(server.port).running() as relay:
        async with AsyncClient(f"127.0.0.1:{relay.port}", retries=0, keepalive=1.0) as client:
            stream = client.stream("go")
            assert (await anext(stream)).text == "Hel"
            relay.silence()
            with pytest.raises(UnavailableError):
                await anext(stream)


@pytest.mark.parametrize("keepalive", [0, 0.5, -1.0, float("nan")])
def test_routers_do_not_allow_more_questions(keepalive: float) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match="keepalive"):
            kind("127.0.0.1:1", keepalive=keepalive)
