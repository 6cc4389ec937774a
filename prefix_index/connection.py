"""The wire to Redis: one URL, one bound on time, one kind of error."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoScriptError, RedisError, ResponseError

from prefix_index.errors import IndexConfigError, IndexUnavailableError
from prefix_index.keys import Keys
from prefix_index.scripts import Script

_T = TypeVar("_T")
_MAX_CONNECTIONS = 16
_CLOSE_TIMEOUT_S = 0.5


def redacted(url: str) -> str:
    """`url` without its credentials and query, fit for messages and logs."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "(no scheme)"
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _check_form(url: str) -> None:
    """Refuses what redis-py would silently take for something else."""
    shown = redacted(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        # The error's own text may quote the credentials.
        raise IndexConfigError(f"Redis URL {shown} has a malformed address") from error
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise IndexConfigError(f"Redis URL {shown} must begin with redis://, rediss:// or unix://")
    if parts.scheme == "unix":
        return
    if not parts.hostname or port == 0:
        raise IndexConfigError(
            f"Redis URL {shown} must name a host: redis://[[user]:password@]host[:port][/db]"
        )
    database = unquote(parts.path).strip("/")
    if database and not database.isdigit():
        raise IndexConfigError(f"Redis URL {shown}: database {database!r} is not a number")


def _open_pool(url: str, timeout_s: float) -> BlockingConnectionPool:
    _check_form(url)
    try:
        pool: BlockingConnectionPool = BlockingConnectionPool.from_url(
            url,
            max_connections=_MAX_CONNECTIONS,
            # Waiting for a free connection is bounded with the call itself.
            timeout=None,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            protocol=2,
            # A repeated command could be applied twice or late; callers decide what to do instead.
            retry=Retry(NoBackoff(), 0),
        )
        # Options in the query are looked at only when a connection is made; this one stays unconnected.
        make_connection: Callable[[], object] = pool.make_connection
        make_connection()
    except (TypeError, ValueError, RedisError) as error:
        raise IndexConfigError(
            f"Redis URL {redacted(url)} has an option that is not known: {error}"
        ) from error
    return pool


class IndexConnection:
    """Runs scripts and commands on one namespace. Belongs to one event loop.

    Args:
        url: `redis://`, `rediss://` or `unix://`, with credentials and database where needed.
        namespace: separates deployments that share a Redis.
        timeout_s: longest that one call takes, connecting included.

    Raises:
        IndexConfigError: the URL or the namespace is malformed.
    """

    def __init__(self, url: str, namespace: str, timeout_s: float) -> None:
        self.keys = Keys.of(namespace)
        self.address = redacted(url)
        self._timeout_s = timeout_s
        self._calls: set[asyncio.Task[Any]] = set()
        self._client: Redis = Redis.from_pool(_open_pool(url, timeout_s))
        self._execute: Callable[..., Coroutine[Any, Any, Any]] = self._client.execute_command

    async def run(self, script: Script, *args: str | bytes | int) -> Any:
        """Reply of a script on this namespace's keys. Raises IndexUnavailableError."""
        arguments = (len(self.keys.all()), *self.keys.all(), *args)

        async def call() -> Any:
            try:
                return await self._execute("EVALSHA", script.sha, *arguments)
            except NoScriptError:  # a fresh or restarted server
                return await self._execute("EVAL", script.source, *arguments)

        return await self._bounded(call)

    async def command(self, *parts: str | bytes | int) -> Any:
        """Reply of one command. Raises IndexUnavailableError."""
        return await self._bounded(lambda: self._execute(*parts))

    async def ping(self) -> None:
        """Asks for a sign of life. Raises IndexUnavailableError."""
        await self.command("PING")

    async def check(self) -> None:
        """Asks for a sign of life. Raises IndexConfigError for refused credentials or an unknown database."""
        try:
            await self.ping()
        except IndexUnavailableError as error:
            if isinstance(error.__cause__, (AuthenticationError, ResponseError)):
                raise IndexConfigError(str(error)) from error
            raise

    async def close(self) -> None:
        """Ends the calls in progress and closes all connections, within a bounded time."""
        for task in self._calls:
            task.cancel()
        if self._calls:
            await asyncio.wait(self._calls, timeout=_CLOSE_TIMEOUT_S)
        with suppress(TimeoutError, RedisError, OSError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._client.aclose(close_connection_pool=True)

    async def _bounded(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        # A task of its own, which is not waited for once the time is over: while redis-py connects, it may
        # take seconds to react to its cancellation.
        task = asyncio.create_task(call())
        self._calls.add(task)
        task.add_done_callback(self._forget)
        try:
            await asyncio.wait((task,), timeout=self._timeout_s)
        finally:
            task.cancel()
        if not task.done():
            raise IndexUnavailableError(
                f"Redis at {self.address} gave no answer within {self._timeout_s:g} s"
            )
        try:
            return task.result()
        except (RedisError, ssl.SSLError, OSError) as error:
            raise IndexUnavailableError(f"Redis at {self.address}: {error}") from error

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # an abandoned call's error is nobody's


async def check_redis(url: str, timeout_s: float = 2.0) -> None:
    """Connects once, to tell a user early about a bad `--redis` URL.

    Raises:
        IndexConfigError: the URL is malformed or the credentials are refused.
        IndexUnavailableError: nobody answers there.
    """
    connection = IndexConnection(url, "default", timeout_s)
    try:
        await connection.check()
    finally:
        await connection.close()
