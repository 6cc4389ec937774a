from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.processes import identify
from cluster.state import (
    DeploymentState,
    ProcessRecord,
    StateFileError,
    read_state,
    remove_state,
    running_deployments,
    state_path,
    write_state,
)


def _state(name: str = "default", start_ticks: int | None = None) -> DeploymentState:
    process = identify(os.getpid())
    assert process is not None
    ticks = process.start_ticks if start_ticks is None else start_ticks
    supervisor = ProcessRecord(name="supervisor", pid=process.pid, start_ticks=ticks)
    return DeploymentState(name=name, instance="x", supervisor=supervisor, phase="ready")


def test_written_and_read(tmp_path: Path) -> None:
    write_state(tmp_path / "run", _state())
    assert read_state(tmp_path / "run", "default") == _state()
    assert state_path(tmp_path / "run", "default").stat().st_mode & 0o077 == 0
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["default.json"]
    remove_state(tmp_path / "run", "default")
    remove_state(tmp_path / "run", "default")
    assert read_state(tmp_path / "run", "default") is None


def test_a_leftover_is_recognised_though_its_pid_lives_again(tmp_path: Path) -> None:
    write_state(tmp_path, _state("live"))
    write_state(tmp_path, _state("leftover", start_ticks=1))
    state = read_state(tmp_path, "leftover")
    assert state is not None
    assert not state.alive
    (tmp_path / "broken.json").write_text("{")
    assert running_deployments(tmp_path) == ["live"]


def test_what_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    write_state(tmp_path, _state())
    # A folder cannot be replaced by a file, whoever asks.
    state_path(tmp_path, "blocked").mkdir()
    with pytest.raises(OSError, match="blocked"):
        write_state(tmp_path, _state("blocked"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blocked.json", "default.json"]
    with pytest.raises(StateFileError, match=r"blocked\.json cannot be read"):
        read_state(tmp_path, "blocked")


def test_a_file_that_is_no_state(tmp_path: Path) -> None:
    state_path(tmp_path, "default").write_text('{"name": 1}')
    with pytest.raises(StateFileError, match=r"default\.json"):
        read_state(tmp_path, "default")
