from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from cluster.processes import INSTANCE_VARIABLE, identify, marked_processes
from cluster.ray_runtime import RayError, RayInfo, RaySlowError
from cluster.ray_start import connect_patiently
from tests.support.waiting import wait_until

INFO = RayInfo("127.0.0.1:1", "")
SLOW = RaySlowError("too slow")


class Runtime:
    """Starts a process at each try, and fails as it is told."""

    def __init__(self, instance: str, failures: list[RayError]) -> None:
        self.instance = instance
        self.failures = failures
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        environment = {**os.environ, INSTANCE_VARIABLE: self.instance}
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        process = subprocess.Popen(command, env=environment)
        self.started.append(process)
        # Until its exec is over, which may be after Popen's return, /proc shows no environment.
        wait_until(lambda: identify(process.pid) in marked_processes(self.instance))

    def connect(self) -> RayInfo:
        self.start()
        if self.failures:
            raise self.failures.pop(0)
        return INFO

    @property
    def alive(self) -> list[bool]:
        return [identify(process.pid) is not None for process in self.started]


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    found = Runtime(f"test-{uuid.uuid4()}", [])
    # Something of the deployment that has nothing to do with Ray.
    found.start()
    yield found
    for process in found.started:
        process.kill()
        process.wait()


def test_one_that_was_too_slow_is_ended_and_started_again(runtime: Runtime) -> None:
    runtime.failures = [SLOW]
    notes: list[str] = []
    assert connect_patiently(runtime, runtime.instance, notes.append) == INFO
    assert notes == ["too slow; trying once more"]
    assert runtime.alive == [True, False, True]


def test_too_slow_again_is_an_error(runtime: Runtime) -> None:
    runtime.failures = [SLOW, RaySlowError("again")]
    with pytest.raises(RayError, match="again"):
        connect_patiently(runtime, runtime.instance, lambda note: None)


def test_other_errors_are_not_tried_again(runtime: Runtime) -> None:
    runtime.failures = [RayError("no such thing"), SLOW]
    with pytest.raises(RayError, match="no such thing"):
        connect_patiently(runtime, runtime.instance, lambda note: None)
    assert runtime.alive == [True, True]
