from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.processes import ProcessId, identify, is_alive
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]

# A supervisor of two processes: one marked, and its child, which shows no mark.
_SUPERVISOR = """
import subprocess, sys, time
from cluster.environment import export
from cluster.guardian import Guardian
from cluster.processes import INSTANCE_VARIABLE
export(INSTANCE_VARIABLE, sys.argv[1])
guardian = Guardian(sys.argv[1])
sleep = "import time; time.sleep(600)"
unmarked = f"p = subprocess.Popen([sys.executable, '-c', '{sleep}'], env={{}})"
unmarked = f"import subprocess, sys; {unmarked}; print(p.pid, flush=True); {sleep}"
marked = subprocess.Popen([sys.executable, "-c", unmarked], stdout=subprocess.PIPE, text=True)
print(guardian.pid, marked.pid, marked.stdout.readline().strip(), flush=True)
for line in sys.stdin:
    if line == "dismiss\\n":
        guardian.dismiss()
        print("dismissed", flush=True)
"""


class _Supervised:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SUPERVISOR, f"guardian-test-{os.getpid()}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        pids = [identify(int(pid)) for pid in self.process.stdout.readline().split()]
        self.processes = [process for process in pids if process is not None]
        assert len(self.processes) == 3

    @property
    def guardian(self) -> ProcessId:
        return self.processes[0]

    @property
    def children(self) -> list[ProcessId]:
        return self.processes[1:]


@pytest.fixture
def supervised() -> Iterator[_Supervised]:
    running = _Supervised()
    with running.process:
        yield running
        running.process.kill()
        for process in running.processes:
            if is_alive(process):
                os.kill(process.pid, signal.SIGKILL)


def test_it_ends_what_a_killed_supervisor_leaves(supervised: _Supervised) -> None:
    supervised.process.kill()
    wait_until(lambda: not any(map(is_alive, supervised.children)))
    wait_until(lambda: not is_alive(supervised.guardian))


def test_dismissed_it_leaves_everything_alone(supervised: _Supervised) -> None:
    assert supervised.process.stdin is not None
    assert supervised.process.stdout is not None
    supervised.process.stdin.write("dismiss\n")
    supervised.process.stdin.flush()
    assert supervised.process.stdout.readline() == "dismissed\n"
    assert not is_alive(supervised.guardian)
    assert all(map(is_alive, supervised.children))
