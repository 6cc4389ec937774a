from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cluster.leftovers import clean_up_after
from cluster.processes import INSTANCE_VARIABLE
from cluster.router_files import RouterFiles
from cluster.state import DeploymentState, ProcessRecord, write_state


def test_processes_and_files_of_a_crashed_deployment_go_and_others_stay(tmp_path: Path) -> None:
    states = {}
    for name in ("crashed", "other"):
        gone = ProcessRecord(name="supervisor", pid=os.getpid(), start_ticks=0)
        states[name] = DeploymentState(name=name, instance=f"{name}-1", supervisor=gone, phase="ready")
        write_state(tmp_path, states[name])
        files = RouterFiles.of(tmp_path, name)
        files.config.write_text("{}")
        files.addresses.write_text("{}")
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, INSTANCE_VARIABLE: "crashed-1"},
    )
    try:
        assert clean_up_after(tmp_path, states["crashed"]) == []
        assert left.wait(10.0) == -9
    finally:
        left.kill()
        left.wait()
    kept = RouterFiles.of(tmp_path, "other")
    assert set(tmp_path.iterdir()) == {kept.config, kept.addresses, tmp_path / "other.json"}
    # Again, or where some were gone already: no error.
    assert clean_up_after(tmp_path, states["crashed"]) == []
