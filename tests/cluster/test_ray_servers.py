from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.processes import children_named
from cluster.ray_servers import RayLostError, RayServers
from tests.support.waiting import wait_until


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Children of this process that are called as Ray's servers are."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    started = {}
    for name in ("gcs_server", "raylet"):
        shutil.copy(sleep, tmp_path / name)
        started[name] = subprocess.Popen([tmp_path / name, "600"])
    wait_until(lambda: all(children_named(os.getpid(), name) for name in started))
    yield started
    for process in started.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize(("name", "title"), [("gcs_server", "control store"), ("raylet", "node manager")])
async def test_the_one_that_ends_is_named(
    servers: dict[str, subprocess.Popen[bytes]], name: str, title: str
) -> None:
    ray = RayServers()
    assert ray.lost == ""
    watching = asyncio.ensure_future(ray.watch())
    # Not reaped: a zombie has ended too.
    servers[name].kill()
    with pytest.raises(RayLostError, match=title):
        await asyncio.wait_for(watching, 30.0)
    assert name in ray.lost


def test_one_that_was_never_there_is_lost() -> None:
    assert "gcs_server" in RayServers().lost
