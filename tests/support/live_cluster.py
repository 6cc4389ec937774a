"""A whole deployment for tests: `kvrelay up` as a user runs it, with every real part."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from cluster.processes import INSTANCE_VARIABLE, ProcessId, end_marked, is_alive, marked_processes
from cluster.state import DeploymentState, read_state
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 240.0
STOP_LIMIT_S = 120.0


@dataclass
class LiveCluster:
    """A running deployment.

    Attributes:
        home: its KVRELAY_HOME.
        name: of the deployment.
        process: the supervisor.
        log: what the supervisor printed.
    """

    home: Path
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def state(self) -> DeploymentState:
        """As it is now."""
        state = read_state(self.home / "run", self.name)
        assert state is not None, f"the deployment is gone\n{self.output}"
        return state

    @property
    def output(self) -> str:
        """What the supervisor printed so far."""
        return self.log.read_text(errors="replace")

    def pid(self, name: str) -> int:
        """Process id of "prefill-0", "decode-0", "router", "redis". Waits until there is one."""
        found: list[int] = []

        def known() -> bool:
            found[:] = [record.pid for record in self.state.processes if record.name == name]
            return bool(found)

        wait_until(known)
        return found[0]

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Signals a part; returns the process id that it had."""
        pid = self.pid(name)
        os.kill(pid, number)
        return pid

    def wait_for_another(self, name: str, pid: int) -> None:
        """Returns once the part has another process and the deployment is ready."""
        wait_until(lambda: any(r.name == name and r.pid != pid for r in self.state.processes), START_LIMIT_S)
        self.wait_ready()

    def wait_ready(self) -> None:
        """Returns once the router can reach workers of every role; one that runs elsewhere: knows them."""
        wait_until(self._ready, START_LIMIT_S)

    def _ready(self) -> bool:
        assert self.process.poll() is None, f"the supervisor ended\n{self.output}"
        if self.state.external_routers:
            # It took the table; the test itself knows its other doors.
            return bool(self.state.admin_address)
        try:
            return httpx.get(f"{self.state.http_url}/ready", timeout=5.0).status_code == 200
        except (httpx.TransportError, httpx.UnsupportedProtocol):
            return False

    def command(self, *arguments: str, text_in: str = "") -> subprocess.CompletedProcess[str]:
        """Runs `kvrelay ARGUMENTS` against this deployment."""
        return run_kvrelay(self.home, *arguments, text_in=text_in)


def kvrelay_environment(home: Path) -> dict[str, str]:
    """Environment of a `kvrelay` that knows nothing of this machine's other deployments."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KVRELAY_", "RAY_")) and name != INSTANCE_VARIABLE
    }
    return environment | {
        "KVRELAY_HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")]),
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }


def run_kvrelay(home: Path, *arguments: str, text_in: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a `kvrelay` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "cluster.cli", *arguments],
        env=kvrelay_environment(home),
        cwd=ROOT,
        input=text_in,
        capture_output=True,
        text=True,
        timeout=STOP_LIMIT_S,
        check=False,
    )


@contextmanager
def live_cluster(
    folder: Path, settings: Mapping[str, object], environment: Mapping[str, str] | None = None
) -> Iterator[LiveCluster]:
    """Runs a deployment on free ports until the end of the block; then no process of it may be left.

    Args:
        folder: an empty one, for KVRELAY_HOME and logs.
        settings: of the spec, as in YAML; ports are free ones unless they say otherwise.
        environment: of the supervisor, beyond `kvrelay_environment`.
    """
    home, log, spec = folder / "home", folder / "up.log", folder / "spec.yaml"
    merged = dict(settings)
    router = settings.get("router", {})
    assert isinstance(router, dict)
    merged["router"] = {"http_port": 0, "grpc_port": 0, **router}
    spec.write_text(yaml.safe_dump(merged))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "cluster.cli", "up", str(spec)],
            env={**kvrelay_environment(home), **(environment or {})},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    cluster = LiveCluster(home, str(settings.get("name", "default")), process, log)
    instance = ""
    try:
        wait_until(lambda: _phase(cluster) == "ready", START_LIMIT_S)
        instance = cluster.state.instance
        cluster.wait_ready()
        yield cluster
    finally:
        known = marked_processes(instance) if instance else []
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        finally:
            # Whatever the test found: the next one must not meet what this one left.
            process.kill()
            process.wait()
            left = _left_after(instance, known)
            end_marked(instance, 10.0, known)
    assert left == [], f"left behind: {left}\n{cluster.output}"


def _phase(cluster: LiveCluster) -> str:
    assert cluster.process.poll() is None, f"`kvrelay up` ended:\n{cluster.output}"
    state = read_state(cluster.home / "run", cluster.name)
    return "" if state is None else state.phase


def _left_after(instance: str, known: list[ProcessId], limit_s: float = 10.0) -> list[ProcessId]:
    """Live processes of the deployment, after a moment for the last of them to be gone."""
    deadline = time.monotonic() + limit_s
    while True:
        left = sorted(
            {*filter(is_alive, known), *(marked_processes(instance) if instance else [])},
            key=lambda process: process.pid,
        )
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)
