"""A router process that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvrelay import AsyncClient, Client, UnavailableError
from tests.client.scripted_server import Server

ROOT = Path(__file__).parents[2]


@contextmanager
def router_process() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server of its own process that stalls. Gives its endpoint."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "client")))}
    command = [sys.executable, "-m", "tests.client.scripted_server"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield f"127.0.0.1:{int(process.stdout.readline())}", process
        finally:
            process.kill()


async def test_killed_before_and_after_the_first_token(server: Server) -> None:
    with router_process() as (endpoint, process):
        only = Client(endpoint, retries=0)
        begun = only.stream("go")
        assert next(begun).text == "Hel"
        async_only = AsyncClient(endpoint, retries=0)
        async_begun = async_only.stream("go")
        assert (await anext(async_begun)).text == "Hel"

        both = Client([endpoint, server.endpoint], timeout=60.0)
        waiting = [both.stream("wait") for _ in range(2)]  # one for each of the two
        process.kill()

        for stream in waiting:
            assert stream.result().text == "Hello"
        with pytest.raises(UnavailableError):
            next(begun)
        with pytest.raises(UnavailableError):
            await anext(async_begun)
        both.close()
        only.close()
        await async_only.close()
    assert len(server.requests) == 2
