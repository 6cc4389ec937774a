from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from cluster.embedded_redis import EmbeddedRedis
from prefix_index.connection import IndexConnection, check_redis, redacted
from prefix_index.errors import IndexConfigError, IndexUnavailableError
from prefix_index.index import RedisPrefixIndex

SECRET = "hush:/@x"
QUOTED = "hush%3A%2F%40x"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "must begin with redis://"),
        ("localhost:6379", "must begin with redis://"),
        ("http://localhost:6379", "must begin with redis://"),
        ("redis://", "must name a host"),
        ("redis://:secret@", "must name a host"),
        ("redis://localhost:port", "malformed address"),
        ("redis://localhost:99999", "malformed address"),
        ("redis://localhost:0", "must name a host"),
        ("redis://u:secret[@localhost", "malformed address"),
        ("redis://localhost/zero", "'zero' is not a number"),
        ("redis://localhost?db=x", "option that is not known"),
        ("redis://:secret@localhost?colour=blue", "option that is not known"),
    ],
)
async def test_malformed_urls_are_refused_at_once_and_never_show_the_password(url: str, reason: str) -> None:
    with pytest.raises(IndexConfigError, match=reason) as caught:
        RedisPrefixIndex(url, "default")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("namespace", ["", "a b", "{x}", "x" * 129, "ä"])
async def test_namespaces_that_could_clash_are_refused(namespace: str) -> None:
    with pytest.raises(IndexConfigError, match="namespace"):
        RedisPrefixIndex("redis://localhost", namespace)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:p@ss@host:1/2?x=y", "redis://host:1/2"),
        ("rediss://host", "rediss://host"),
        ("user:pass", "(no scheme)"),
    ],
)
def test_credentials_are_never_shown(url: str, shown: str) -> None:
    assert redacted(url) == shown


async def _lock(server: EmbeddedRedis) -> None:
    async with Redis.from_url(server.url) as client:
        await client.config_set("requirepass", SECRET)


async def test_password_and_database_of_the_url_are_used(own_server: EmbeddedRedis) -> None:
    await _lock(own_server)
    url = f"redis://:{QUOTED}@127.0.0.1:{own_server.port}/3"
    await check_redis(url)
    index = RedisPrefixIndex(url, "default")
    await index.book("worker", "request", 1, 30.0)
    await index.close()
    async with Redis(port=own_server.port, password=SECRET, db=3) as client:
        assert await client.dbsize() == 1


@pytest.mark.parametrize("credentials", ["", ":wrong@", "somebody:wrong@"])
async def test_refused_credentials_are_told_apart_from_absence(
    own_server: EmbeddedRedis, credentials: str
) -> None:
    await _lock(own_server)
    url = f"redis://{credentials}127.0.0.1:{own_server.port}"
    with pytest.raises(IndexConfigError, match=r"127\.0\.0\.1") as caught:
        await check_redis(url)
    assert "wrong" not in str(caught.value).replace("WRONGPASS", "")
    index = RedisPrefixIndex(url, "default")
    with pytest.raises(IndexUnavailableError):
        await index.match([])
    await index.close()


async def test_an_unknown_database_is_a_mistake_of_the_user(url: str) -> None:
    with pytest.raises(IndexConfigError, match="DB index"):
        await check_redis(url.removesuffix("/0") + "/99999")


async def test_nobody_there(unused_tcp_port: int) -> None:
    with pytest.raises(IndexUnavailableError, match=f"127.0.0.1:{unused_tcp_port}"):
        await check_redis(f"redis://127.0.0.1:{unused_tcp_port}")


async def test_rediss_speaks_tls() -> None:
    greeting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting.set_result(await reader.readexactly(3))
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = IndexConnection(f"rediss://127.0.0.1:{port}", "default", timeout_s=5.0)
    with pytest.raises(IndexUnavailableError):
        await connection.ping()
    await connection.close()
    server.close()
    await server.wait_closed()
    # RFC 8446, 5.1: record type 22 (handshake), version 3.x.
    assert (await greeting)[:2] == b"\x16\x03"


async def test_scripts_are_loaded_again_after_the_server_forgot_them(url: str, namespace: str) -> None:
    index = RedisPrefixIndex(url, namespace)
    await index.book("worker", "request", 5, 30.0)
    async with Redis.from_url(url) as client:
        await client.script_flush()
    await index.book("worker", "request", 7, 30.0)
    await index.unbook("worker", "request")
    await index.close()
