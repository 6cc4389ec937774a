"""A server of the local Ray dies: without it nothing restarts, so the deployment ends, with the reason."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cluster.processes import children_named
from tests.support.live_cluster import STOP_LIMIT_S, live_cluster
from tests.support.tiny_models import tiny_llama

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("command", "title"), [("gcs_server", "control store"), ("raylet", "node manager")])
def test_the_deployment_ends_in_order(command: str, title: str, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny")
    with live_cluster(tmp_path, {"model": str(model), "kv_memory": "16MiB"}) as cluster:
        (server,) = children_named(cluster.process.pid, command)
        os.kill(server.pid, signal.SIGKILL)
        assert cluster.process.wait(STOP_LIMIT_S) == 1
        assert f"error: the local Ray is lost: its {title} ({command}) has ended" in cluster.output
        assert "Traceback" not in cluster.output
        run_dir = cluster.home / "run"
        assert list(run_dir.iterdir()) == []
    # That no process is left, the end of the block has asserted.
