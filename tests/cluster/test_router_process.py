from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from cluster.environment import read_environment
from cluster.processes import is_alive
from cluster.router_files import RouterFiles
from cluster.router_process import RouterProcess, RouterStartError
from router.config import RouterConfig
from tests.support.tiny_models import tiny_llama
from tests.support.waiting import until


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def _router(model: Path, folder: Path, changes: list[str], http_port: int = 0) -> RouterProcess:
    config = RouterConfig(
        router_id="router-0",
        served_name="tiny",
        model_dir=model,
        block_size=16,
        max_model_len=256,
        http_port=http_port,
        grpc_port=0,
        api_keys=("hunter2",),
        addresses_file=folder / "addresses",
    )
    router = RouterProcess(
        lambda: config,
        files=RouterFiles(folder / "router-0.config.json", folder / "addresses"),
        log_path=folder / "router.log",
        python_path=read_environment().import_path,
        workers=lambda: [],
        on_change=lambda: changes.append(router.trouble),
    )
    return router


@asynccontextmanager
async def _supervised(router: RouterProcess) -> AsyncIterator[None]:
    await router.start()
    task = asyncio.create_task(router.supervise())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await router.stop(30.0)
        router.clean_up()


async def test_a_killed_router_comes_back_where_it_was(model: Path, tmp_path: Path) -> None:
    changes: list[str] = []
    router = _router(model, tmp_path, changes)
    async with _supervised(router):
        first, addresses = router.process, router.addresses
        assert first is not None
        assert addresses is not None
        assert (tmp_path / "router-0.config.json").stat().st_mode & 0o077 == 0
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: router.restarts == 1 and router.addresses is not None)
        assert router.addresses is not None
        assert (router.addresses.http, router.addresses.grpc) == (addresses.http, addresses.grpc)
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://{addresses.http}/health")).status_code == 200
        last = router.process
        assert last is not None
    assert changes == ["", "the process ended with status -9", ""]
    assert not is_alive(last)
    assert _names(tmp_path) == ["router.log"]


async def test_a_router_that_cannot_start_says_why(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RouterStartError, match=str(port)):
            await _router(model, tmp_path, [], http_port=port).start()


async def test_a_router_launched_ahead_waits_for_its_settings(model: Path, tmp_path: Path) -> None:
    changes: list[str] = []
    router = _router(model, tmp_path, changes)
    await router.launch()
    launched = router.process
    assert launched is not None
    try:
        assert _names(tmp_path) == ["router.log"]
        await router.start()
        assert router.process == launched
        assert router.restarts == 0
        assert changes == [""]
    finally:
        await router.stop(30.0)
        router.clean_up()
    assert not is_alive(launched)
