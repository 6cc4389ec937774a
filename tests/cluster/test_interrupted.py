"""Ctrl-C while the command is still being loaded: no trace, exit status 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.live_cluster import ROOT, kvrelay_environment
from tests.support.waiting import wait_until


def test_nothing_is_printed(tmp_path: Path) -> None:
    # Held there by a module that comes first on the path and never finishes its import.
    (tmp_path / "typer").mkdir()
    (tmp_path / "typer" / "__init__.py").write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'loading')!r}).touch()\ntime.sleep(600)\n"
    )
    environment = kvrelay_environment(tmp_path)
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    process = subprocess.Popen(
        [sys.executable, "-m", "cluster.cli", "up"],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        wait_until((tmp_path / "loading").exists)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60.0)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, output) == (130, b"")
