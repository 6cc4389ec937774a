"""The router's process: started, told who the workers are, started anew when it dies or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
from pydantic import ValidationError

from cluster.backoff import Backoff
from cluster.environment import inherited_environment
from cluster.processes import ProcessId, identify
from cluster.router_files import RouterFiles
from cluster.routers import FIRST_REPORTS_S, PUSH_INTERVAL_S, RouterAddresses, TablePush
from cluster.tether import start_tethered
from kvrelay.v1 import router_pb2_grpc, worker_pb2
from router.config import RouterConfig
from telemetry.logs import fields

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 120.0
_POLL_S = 0.05
# So many unanswered pushes in a row mean that the router hangs.
_HUNG_AFTER = 3
_LOG_TAIL_LINES = 8


class RouterStartError(Exception):
    """The router did not start; the message holds the end of its log."""


class RouterProcess:
    """Keeps one router running until its task is cancelled. Implements `cluster.routers.Routers`.

    Args:
        configure: gives its settings, with `addresses_file` that of `files`; asked for at the first start.
        files: where it finds its settings and says where it listens.
        log_path: its output is appended here.
        python_path: folders it imports from.
        workers: the table to tell it, asked for at each push.
        on_change: called after `addresses` or `trouble` has changed.

    Attributes:
        addresses: of the running router; None while there is none.
        trouble: why there is none; empty while it serves.
        restarts: processes that came after the first.
    """

    def __init__(
        self,
        configure: Callable[[], RouterConfig],
        *,
        files: RouterFiles,
        log_path: Path,
        python_path: str,
        workers: Callable[[], Sequence[worker_pb2.WorkerInfo]],
        on_change: Callable[[], None],
    ) -> None:
        self.addresses: RouterAddresses | None = None
        self.trouble = "starting"
        self.restarts = 0
        self._configure = configure
        self._config: RouterConfig | None = None
        self._files = files
        self._log_path = log_path
        self._log_start = 0
        self._python_path = python_path
        self._table = TablePush(workers)
        self._on_change = on_change
        self._process: asyncio.subprocess.Process | None = None
        self._backoff = Backoff()
        self._push_now = asyncio.Event()

    @property
    def process(self) -> ProcessId | None:
        """Its process, while there is one."""
        return None if self._process is None else identify(self._process.pid)

    def workers_changed(self) -> None:
        """Sends the table at once."""
        self._push_now.set()

    async def launch(self) -> None:
        """Starts the process, which loads its code and waits for its settings. Raises OSError.

        Not needed before `start`, but of use where those settings are still to come.
        """
        for file in (self._files.config, self._log_path):
            file.parent.mkdir(parents=True, exist_ok=True)
        self._files.remove()
        with self._log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = await start_tethered(
                [sys.executable, "-m", "router", "--config", str(self._files.config), "--wait"],
                log=log,
                environment=inherited_environment() | {"PYTHONPATH": self._python_path},
            )

    async def start(self) -> None:
        """Has the router serve and tells it the workers. Raises RouterStartError, OSError."""
        if self._process is None or self._process.returncode is not None:
            await self.launch()
        if self._process is None:
            raise AssertionError("launch starts a process")
        config = self._config or self._configure()
        self._write_config(config)
        addresses = await self._await_addresses(self._process)
        # After a restart clients must find it where it was.
        self._config = config.model_copy(
            update={
                "http_port": _port(addresses.http),
                "grpc_port": _port(addresses.grpc),
                "admin_port": _port(addresses.admin),
            }
        )
        await self._await_workers(self._process, addresses.admin)
        self.addresses = addresses
        self.trouble = ""
        self._on_change()

    async def supervise(self) -> None:
        """Pushes the table, and restarts the router when it dies or hangs, for ever. After `start`."""
        while True:
            if self.addresses is not None and self._process is not None:
                reason = await self._watch(self._process, self.addresses.admin)
                self._lost(reason)
            await asyncio.sleep(self._backoff.failed())
            try:
                await self.start()
                self.restarts += 1
            except (RouterStartError, OSError) as error:
                # OSError: its files cannot be written, a full disk for example, which may pass.
                self._lost(f"does not start ({self._backoff.failures} failures in a row): {error}")

    async def stop(self, timeout_s: float) -> None:
        """SIGTERM, on which it lets running requests end; SIGKILL when that takes too long."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), timeout_s)
        except TimeoutError:
            await self._kill(self._process)

    def clean_up(self) -> None:
        """Removes its files."""
        self._files.remove()

    def _write_config(self, config: RouterConfig) -> None:
        """In one step, for it is waited for; readable by us only, for it may hold an API key."""
        fresh = self._files.config.with_suffix(".tmp")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(config.model_dump_json())
        fresh.replace(self._files.config)

    def _lost(self, reason: str) -> None:
        self.addresses = None
        self.trouble = reason
        logger.warning("router lost", extra=fields(reason=reason))
        self._on_change()

    async def _await_addresses(self, process: asyncio.subprocess.Process) -> RouterAddresses:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if process.returncode is not None:
                raise RouterStartError(self._log_tail(self._log_start) or f"exit status {process.returncode}")
            with contextlib.suppress(FileNotFoundError, ValidationError):
                # Not there yet, or not written to its end.
                return RouterAddresses.model_validate_json(self._files.addresses.read_text())
            await asyncio.sleep(_POLL_S)
        await self._kill(process)
        raise RouterStartError(f"did not start within {_START_TIMEOUT_S:g} s; see {self._log_path}")

    async def _await_workers(self, process: asyncio.subprocess.Process, admin: str) -> None:
        """Tells it the workers; returns once it hears from all of them, or after a while without."""
        deadline = time.monotonic() + FIRST_REPORTS_S
        async with grpc.aio.insecure_channel(admin) as channel:
            stub = router_pb2_grpc.RouterAdminStub(channel)
            while process.returncode is None and time.monotonic() < deadline:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    if await self._table.heard_from_all(stub):
                        return
                await asyncio.sleep(_POLL_S)

    def _log_tail(self, start: int) -> str:
        with self._log_path.open("rb") as log:
            log.seek(start)
            lines = log.read().decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    async def _watch(self, process: asyncio.subprocess.Process, admin: str) -> str:
        """Pushes until the process ends; returns why it did."""
        pushing = asyncio.create_task(self._push_for_ever(admin))
        ending = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({pushing, ending}, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                return f"the process ended with status {ending.result()}"
            reason = pushing.result()
            await self._kill(process)
            return reason
        finally:
            pushing.cancel()
            ending.cancel()

    async def _push_for_ever(self, admin: str) -> str:
        unanswered = 0
        async with grpc.aio.insecure_channel(admin) as channel:
            stub = router_pb2_grpc.RouterAdminStub(channel)
            while unanswered < _HUNG_AFTER:
                self._push_now.clear()
                try:
                    await self._table.push(stub)
                    unanswered = 0
                except grpc.aio.AioRpcError as error:
                    unanswered += 1
                    logger.warning("table not taken", extra=fields(reason=error.details()))
                    await asyncio.sleep(1.0)
                    continue
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._push_now.wait(), PUSH_INTERVAL_S)
        return f"{_HUNG_AFTER} worker tables in a row were not taken"

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
