from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from cluster import embedded_redis
from cluster.embedded_redis import EmbeddedRedis
from prefix_index.index import RedisPrefixIndex


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A server for tests that leave it running; they keep apart by namespace."""
    with embedded_redis.start(tmp_path_factory.mktemp("redis") / "redis.log") as server:
        yield server


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A server that the test may stop, kill or configure."""
    with embedded_redis.start(tmp_path_factory.mktemp("redis") / "redis.log") as server:
        yield server


@pytest.fixture
def url(shared_server: EmbeddedRedis) -> str:
    return shared_server.url


@pytest.fixture
def namespace() -> str:
    return uuid.uuid4().hex


@pytest_asyncio.fixture
async def index(url: str, namespace: str) -> AsyncIterator[RedisPrefixIndex]:
    index = RedisPrefixIndex(url, namespace)
    yield index
    await index.close()
