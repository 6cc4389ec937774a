from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from kvrelay import AsyncClient, Client
from tests.client.scripted_server import Server, serving


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server()) as server:
        yield server


@pytest.fixture
def other_server() -> Iterator[Server]:
    with serving(Server()) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.endpoint, timeout=60.0) as client:
        yield client


@pytest_asyncio.fixture
async def async_client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.endpoint, timeout=60.0) as client:
        yield client
