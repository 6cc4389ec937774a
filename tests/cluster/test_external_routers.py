"""Real routers' admin ports, and names whose addresses the test decides."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from cluster.external_routers import ExternalRouters, addresses_of
from kvrelay.v1 import worker_pb2
from router.core import RouterCore
from router.rpc.server import RpcServer, admin_server
from tests.router.harness import config
from tests.support.fake_workers import FakeDecodeWorker, FakePrefillWorker
from tests.support.waiting import until

NAME = "routers.test:1"


class AdminRouter:
    """The part of a router that the supervisor sees. `restart` keeps the port and forgets all else."""

    def __init__(self) -> None:
        self.port = 0
        self._core: RouterCore | None = None
        self._server: RpcServer | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def workers(self) -> list[str]:
        assert self._core is not None
        return [link.worker_id for link in self._core.table.links]

    async def start(self) -> None:
        self._core = RouterCore(config(), None)
        await self._core.start()
        self._server = admin_server("127.0.0.1", self.port, self._core.admin)
        self.port = self._server.port
        await self._server.start()

    async def stop(self) -> None:
        if self._core is not None and self._server is not None:
            await self._server.stop(0)
            await self._core.close()
        self._core = self._server = None


class Names:
    """A name service with one name."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = set(addresses)
        self.down = False

    async def resolve(self, endpoint: str) -> frozenset[str]:
        assert endpoint == NAME
        if self.down:
            raise OSError("the name service is down")
        return frozenset(self.addresses)


@asynccontextmanager
async def informed(
    names: Names, workers: Callable[[], Sequence[worker_pb2.WorkerInfo]], patience_s: float = 30.0
) -> AsyncIterator[ExternalRouters]:
    """Routers under supervision; `workers_changed` comes with every change, as from the supervisor."""
    routers = ExternalRouters(
        [NAME],
        workers=workers,
        on_change=lambda: routers.workers_changed(),
        resolve=names.resolve,
        patience_s=patience_s,
    )
    supervision = None
    try:
        await routers.start()
        supervision = asyncio.create_task(routers.supervise())
        yield routers
        assert not supervision.done()
    finally:
        if supervision is not None:
            supervision.cancel()
            await asyncio.gather(supervision, return_exceptions=True)
        await routers.stop(0.0)


@pytest.fixture
async def workers() -> AsyncIterator[list[FakePrefillWorker | FakeDecodeWorker]]:
    fakes = [FakePrefillWorker("prefill-0"), FakeDecodeWorker("decode-0")]
    for worker in fakes:
        await worker.start()
    yield fakes
    for worker in fakes:
        await worker.stop()


@pytest.fixture
async def pair() -> AsyncIterator[tuple[AdminRouter, AdminRouter]]:
    routers = AdminRouter(), AdminRouter()
    for router in routers:
        await router.start()
    yield routers
    for router in routers:
        await router.stop()


async def test_routers_come_and_go(
    workers: list[FakePrefillWorker | FakeDecodeWorker], pair: tuple[AdminRouter, AdminRouter]
) -> None:
    first, second = pair
    names = Names(first.address)
    table = [worker.info for worker in workers]
    async with informed(names, lambda: table) as routers:
        assert first.workers == ["decode-0", "prefill-0"], "start waits until a router hears from all"
        assert second.workers == []
        names.addresses.add(second.address)
        await until(lambda: second.workers == ["decode-0", "prefill-0"])
        table.pop()
        routers.workers_changed()
        await until(lambda: first.workers == second.workers == ["prefill-0"])
        names.addresses.discard(first.address)
        await until(lambda: routers.addresses is not None and routers.addresses.admin == second.address)
        table.clear()
        routers.workers_changed()
        await until(lambda: second.workers == [])
        assert first.workers == ["prefill-0"], "it is not ours any more"
        assert routers.trouble == ""


async def test_a_router_that_restarts_is_told_again(
    workers: list[FakePrefillWorker | FakeDecodeWorker], pair: tuple[AdminRouter, AdminRouter]
) -> None:
    router = pair[0]
    async with informed(Names(router.address), lambda: [worker.info for worker in workers]) as routers:
        await until(lambda: routers.addresses is not None)
        await router.stop()
        await until(lambda: router.address in routers.trouble)
        assert routers.addresses is None
        await router.start()
        await until(lambda: router.workers == ["decode-0", "prefill-0"])
        await until(lambda: routers.trouble == "")


async def test_a_name_service_that_fails_loses_no_router(
    workers: list[FakePrefillWorker | FakeDecodeWorker], pair: tuple[AdminRouter, AdminRouter]
) -> None:
    names = Names(pair[0].address)
    table = [worker.info for worker in workers]
    async with informed(names, lambda: table) as routers:
        names.down = True
        await until(lambda: "the name service is down" in routers.trouble)
        table.pop()
        routers.workers_changed()
        await until(lambda: pair[0].workers == ["prefill-0"])
        names.down = False
        await until(lambda: routers.trouble == "")


async def test_starting_without_any_router_is_no_failure(pair: tuple[AdminRouter, AdminRouter]) -> None:
    names = Names()
    names.down = True
    async with informed(names, list, patience_s=0.1) as routers:
        assert routers.addresses is None
        assert NAME in routers.trouble
        names.down = False
        names.addresses.add(pair[1].address)
        await until(lambda: routers.addresses is not None)
        assert routers.trouble == ""


@pytest.mark.parametrize(
    ("endpoint", "address"), [("127.0.0.1:80", "127.0.0.1:80"), ("[::1]:80", "[::1]:80")]
)
async def test_addresses(endpoint: str, address: str) -> None:
    assert await addresses_of(endpoint) == {address}


async def test_names() -> None:
    assert "127.0.0.1:80" in await addresses_of("localhost:80")
    with pytest.raises(socket.gaierror):
        await addresses_of("no-such-host.invalid:80")
