"""A Ray cluster of one node that somebody else runs: started and ended as by hand, never by `ray stop`."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cluster.processes import INSTANCE_VARIABLE, end_marked, marked_processes
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class RayHead:
    """A running Ray.

    Attributes:
        address: host:port of its control store.
        environment: what its users must have in theirs.
        process: what `ray start --block` became.
    """

    address: str
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] = field(repr=False)

    def ask(self, expression: str) -> object:
        """Evaluates an expression in a process that is connected to this Ray; it must give JSON."""
        program = (
            f"import json, logging, ray; ray.init(address={self.address!r}, log_to_driver=False, "
            f"logging_level=logging.ERROR); print(json.dumps({expression}))"
        )
        result = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=START_LIMIT_S,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        answer: object = json.loads(result.stdout.splitlines()[-1])
        return answer


@contextmanager
def ray_head(log: Path, resources: Mapping[str, float]) -> Iterator[RayHead]:
    """Runs Ray on free ports of 127.0.0.1, with token authentication, until the end of the block.

    Args:
        log: file for its output.
        resources: custom ones that its node offers.
    """
    mark = f"ray-head-{uuid.uuid4()}"
    users = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's name for staying on the loopback address.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
    own = {
        # As the image has them installed.
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")]),
        INSTANCE_VARIABLE: mark,
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    address = f"127.0.0.1:{free_port()}"
    # Sockets lie in it, whose paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            f"--port={address.rpartition(':')[2]}",
            f"--ray-client-server-port={free_port()}",
            f"--dashboard-agent-listen-port={free_port()}",
            "--include-dashboard=false",
            *("--min-worker-port=0", "--max-worker-port=0"),
            *("--num-cpus=0", "--object-store-memory=104857600", f"--resources={json.dumps(resources)}"),
            f"--temp-dir={folder}",
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**environment, **users, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        head = RayHead(address, users, process)
        try:
            wait_until(lambda: _healthy(head, log), START_LIMIT_S)
            yield head
            assert process.poll() is None, f"Ray ended\n{log.read_text(errors='replace')}"
        finally:
            known = marked_processes(mark)
            process.terminate()
            try:
                process.wait(STOP_LIMIT_S)
            finally:
                end_marked(mark, STOP_LIMIT_S, known)
                process.wait()


def _healthy(head: RayHead, log: Path) -> bool:
    """What the manifests' supervisor asks before it starts."""
    assert head.process.poll() is None, f"Ray does not start\n{log.read_text(errors='replace')}"
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", head.address]
    environment = {**os.environ, **head.environment}
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0
