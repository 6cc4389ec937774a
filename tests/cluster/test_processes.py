from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster.processes import (
    INSTANCE_VARIABLE,
    ProcessId,
    end_marked,
    identify,
    is_alive,
    marked_processes,
    send_signal,
    wait_for_end,
)
from tests.support.waiting import wait_until

_SLEEP = "import time; time.sleep(600)"
_PARENT = (
    "import os, subprocess, sys, time; "
    "e = {k: v for k, v in os.environ.items() if k != sys.argv[1]}; "
    f"p = subprocess.Popen([sys.executable, '-c', '{_SLEEP}'], env=e); "
    "print(p.pid, flush=True); time.sleep(600)"
)


@contextmanager
def _child(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *arguments], env=os.environ | environment, stdout=subprocess.PIPE, text=True
    )
    try:
        with process:
            yield process
            process.kill()
    finally:
        process.kill()


def _identify(pid: int) -> ProcessId:
    process = identify(pid)
    assert process is not None
    return process


def test_a_live_process_is_told_from_a_later_one_with_its_pid() -> None:
    with _child("-c", _SLEEP) as child:
        process = _identify(child.pid)
        assert is_alive(process)
        later = ProcessId(process.pid, process.start_ticks + 1)
        assert not is_alive(later)
        assert not send_signal(later, signal.SIGKILL)
        assert wait_for_end(later, 0.0)
        assert child.poll() is None


def test_a_stopped_process_is_alive_and_can_be_killed() -> None:
    with _child("-c", _SLEEP) as child:
        process = _identify(child.pid)
        assert send_signal(process, signal.SIGSTOP)
        assert is_alive(process)
        assert not wait_for_end(process, 0.01)
        assert send_signal(process, signal.SIGKILL)
        assert wait_for_end(process, 60.0)
        assert not is_alive(process)


def test_a_zombie_is_gone() -> None:
    with _child("-c", "") as child:
        wait_until(lambda: identify(child.pid) is None)
        assert child.poll() is not None


def test_a_command_with_spaces_and_parentheses_is_read() -> None:
    name = "from pathlib import Path; Path('/proc/self/comm').write_text('a) R (b'); print(1, flush=True);"
    with _child("-c", name + _SLEEP) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert is_alive(_identify(child.pid))


def test_marked_processes_and_their_descendants_are_ended() -> None:
    instance = f"test-{os.getpid()}"
    with (
        _child("-c", _PARENT, INSTANCE_VARIABLE, **{INSTANCE_VARIABLE: instance}) as parent,
        _child("-c", _SLEEP, **{INSTANCE_VARIABLE: instance + "-other"}) as other,
    ):
        assert parent.stdout is not None
        grandchild = _identify(int(parent.stdout.readline()))
        found = marked_processes(instance)
        assert {process.pid for process in found} == {parent.pid, grandchild.pid}
        assert end_marked(instance, 60.0) == []
        assert not is_alive(grandchild)
        assert other.poll() is None


def test_known_processes_are_ended_though_they_lost_their_mark() -> None:
    with _child("-c", _SLEEP) as child:
        process = _identify(child.pid)
        assert marked_processes("nobody") == []
        assert end_marked("nobody", 60.0, [process]) == []
        assert not is_alive(process)


@pytest.mark.parametrize("pid", [2**22 + 1])
def test_no_such_process(pid: int) -> None:
    assert identify(pid) is None
    assert not send_signal(ProcessId(pid, 1), signal.SIGKILL)
    assert wait_for_end(ProcessId(pid, 1), 0.0)
