"""Routers that somebody else starts and stops: found by name, told who the workers are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence

import grpc

from cluster.processes import ProcessId
from cluster.routers import FIRST_REPORTS_S, PUSH_INTERVAL_S, RouterAddresses, TablePush
from kvrelay.v1 import router_pb2_grpc, worker_pb2
from router.addresses import join_address
from telemetry.logs import fields

logger = logging.getLogger(__name__)

_RESOLVE_INTERVAL_S = 2.0
_POLL_S = 0.05
_CHANNEL_OPTIONS = (
    # A router that comes back is told who the workers are within seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Another process behind the same address must not inherit this one's connection backoff.
    ("grpc.use_local_subchannel_pool", 1),
)


async def addresses_of(endpoint: str) -> frozenset[str]:
    """All addresses behind host:port. Raises OSError."""
    host, _, port = endpoint.rpartition(":")
    found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    return frozenset(join_address(str(address[0]), int(address[1])) for *_, address in found)


class ExternalRouters:
    """Keeps the routers behind some names informed. Implements `cluster.routers.Routers`.

    Args:
        endpoints: host:port of RouterAdmin; a name that stands for several addresses means all of them, and
            is asked about again and again.
        workers: the table to tell them, asked for at each push.
        on_change: called after `addresses` or `trouble` may have changed.
        resolve: all addresses behind host:port, as host:port; raises OSError.
        patience_s: how long `start` waits for a router.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        workers: Callable[[], Sequence[worker_pb2.WorkerInfo]],
        on_change: Callable[[], None],
        resolve: Callable[[str], Awaitable[frozenset[str]]] = addresses_of,
        patience_s: float = FIRST_REPORTS_S,
    ) -> None:
        self._resolve_name = resolve
        self._patience_s = patience_s
        self._endpoints = tuple(endpoints)
        self._table = TablePush(workers)
        self._on_change = on_change
        self._links: dict[str, _RouterLink] = {}
        self._found: dict[str, frozenset[str]] = {}
        self._unresolved: dict[str, str] = {}

    @property
    def addresses(self) -> RouterAddresses | None:
        """Of one that took the last table, the same as long as it does so."""
        serving = [address for address, link in self._links.items() if link.serves]
        return RouterAddresses(admin=min(serving)) if serving else None

    @property
    def process(self) -> ProcessId | None:
        """None: they are not ours."""
        return None

    @property
    def trouble(self) -> str:
        """Names that stand for no address, and routers that do not take the table."""
        links = {address: link.trouble for address, link in sorted(self._links.items()) if link.trouble}
        return "; ".join(f"{name}: {reason}" for name, reason in (*self._unresolved.items(), *links.items()))

    def workers_changed(self) -> None:
        """Sends the table at once."""
        for link in self._links.values():
            link.send_now()

    async def start(self) -> None:
        """Begins to inform them. Returns once one hears from all workers, or after a while without."""
        deadline = time.monotonic() + self._patience_s
        await self._resolve()
        while time.monotonic() < deadline:
            if any(await asyncio.gather(*(link.hears_all() for link in self._links.values()))):
                break
            await asyncio.sleep(_POLL_S)
            await self._resolve()
        self._on_change()

    async def supervise(self) -> None:
        """Follows the names for ever; each router found has a task that informs it."""
        while True:
            await self._resolve()
            for link in self._links.values():
                link.check()
            await asyncio.sleep(_RESOLVE_INTERVAL_S)

    async def stop(self, timeout_s: float) -> None:
        """Informs them no longer; they run on."""
        links, self._links = self._links, {}
        await asyncio.gather(*(link.close() for link in links.values()))

    def clean_up(self) -> None:
        """Nothing was made."""

    async def _resolve(self) -> None:
        before = self.trouble
        for endpoint in self._endpoints:
            try:
                self._found[endpoint] = await self._resolve_name(endpoint)
                self._unresolved.pop(endpoint, None)
            except OSError as error:
                # Those found before may well live on while the name service does not answer.
                self._unresolved[endpoint] = error.strerror or str(error)
        wanted = frozenset[str]().union(*self._found.values())
        for address in sorted(wanted - self._links.keys()):
            logger.info("router found", extra=fields(address=address))
            self._links[address] = _RouterLink(address, self._table, self._on_change)
        for address in sorted(self._links.keys() - wanted):
            logger.info("router gone", extra=fields(address=address))
            await self._links.pop(address).close()
        if self.trouble != before:
            self._on_change()


class _RouterLink:
    """Informs one router for as long as it is wanted.

    Attributes:
        serves: it took the last table.
        trouble: why it did not; empty before the first answer, too.
    """

    def __init__(self, address: str, table: TablePush, on_change: Callable[[], None]) -> None:
        self.serves = False
        self.trouble = ""
        self._address = address
        self._table = table
        self._on_change = on_change
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub = router_pb2_grpc.RouterAdminStub(self._channel)
        self._due = asyncio.Event()
        self._task = asyncio.create_task(self._inform())

    def send_now(self) -> None:
        """Does not wait for the next interval."""
        self._due.set()

    def check(self) -> None:
        """Raises what ended the task: nothing should."""
        if self._task.done():
            self._task.result()

    async def hears_all(self) -> bool:
        """Whether the router lives and hears from every worker."""
        try:
            return await self._table.heard_from_all(self._stub)
        except grpc.aio.AioRpcError:
            return False

    async def close(self) -> None:
        """Forgets the router."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close(grace=None)

    async def _inform(self) -> None:
        while True:
            self._due.clear()
            try:
                await self._table.push(self._stub)
                trouble = ""
            except grpc.aio.AioRpcError as error:
                trouble = error.details() or error.code().name
            changed = self.serves == bool(trouble)
            self.serves, self.trouble = not trouble, trouble
            if changed:
                logger.info("router", extra=fields(address=self._address, trouble=trouble))
                self._on_change()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), PUSH_INTERVAL_S)
