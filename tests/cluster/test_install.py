"""A model folder appears as a whole, once, however many processes want it and whichever of them dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.model_store.install import install
from cluster.model_store.progress import silent

ROOT = Path(__file__).parents[2]
# Builds a folder slowly, noting each time that it does.
BUILDER = """
import sys, time
from pathlib import Path
from cluster.model_store.install import install
from cluster.model_store.progress import silent

target, notes, pause = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])

def build(folder):
    with notes.open("a") as file:
        file.write("built\\n")
    (folder / "first").write_text("1")
    print("building", flush=True)
    time.sleep(pause)
    (folder / "second").write_text("2")

install(target, build, silent)
assert (target / "second").read_text() == "2"
print("done", flush=True)
"""


def builder(target: Path, notes: Path, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILDER, str(target), str(notes), str(pause)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_builds_once(tmp_path: Path) -> None:
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "file").write_text("x")

    target = tmp_path / "home" / "models" / "name"
    for _ in range(2):
        assert install(target, build, silent) == target
    assert len(built) == 1
    assert [path.name for path in target.iterdir()] == ["file"]
    assert [path.name for path in target.parent.iterdir() if path.is_dir()] == ["name"]


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError("disk full")

    target = tmp_path / "models" / "name"
    with pytest.raises(OSError, match="disk full"):
        install(target, fail, silent)
    assert [path for path in target.parent.iterdir() if path.is_dir()] == []
    install(target, lambda folder: (folder / "whole").touch(), silent)
    assert (target / "whole").exists()


def test_processes_that_want_it_at_once_build_it_once(tmp_path: Path) -> None:
    target, notes = tmp_path / "models" / "name", tmp_path / "notes"
    processes = [builder(target, notes, 0.5) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert all(output.endswith("done\n") for output in outputs)
    assert notes.read_text() == "built\n"


def test_killed_builder_is_cleaned_up_after(tmp_path: Path) -> None:
    target, notes = tmp_path / "models" / "name", tmp_path / "notes"
    with builder(target, notes, 600) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "building\n"
        os.kill(killed.pid, signal.SIGKILL)
    assert not target.exists()
    with builder(target, notes, 0) as second:
        assert second.wait(timeout=60) == 0
    assert [path.name for path in target.parent.iterdir() if path.is_dir()] == ["name"]


def test_waiting_is_told(tmp_path: Path) -> None:
    target, notes = tmp_path / "models" / "name", tmp_path / "notes"
    with builder(target, notes, 1.0) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "building\n"
        told: list[str] = []
        install(target, lambda folder: None, lambda message, fraction=None: told.append(message))
        assert other.wait(timeout=60) == 0
    assert told == ["waiting for another process: name"]
