"""Real workers for tests: configurations, a slow engine, processes, and looks at their counts."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.speculation.config import NO_SPECULATION
from kvrelay.v1 import prefill_pb2, prefill_pb2_grpc, worker_pb2, worker_pb2_grpc
from tests.support.requests import PREFILL_CHUNK, work_request
from worker.assembly import Assembly, assemble
from worker.config import WorkerConfig

LIMIT_S = 60.0
READY = "READY "
ROOT = Path(__file__).resolve().parents[2]


def worker_config(model_dir: Path, worker_id: str, **overrides: Any) -> WorkerConfig:
    """Small and quick: short time-outs are still generous for a loaded machine."""
    engine = EngineConfig(
        model_dir=model_dir,
        num_blocks=overrides.pop("num_blocks", 96),
        max_model_len=overrides.pop("max_model_len", 1024),
        prefill_chunk=PREFILL_CHUNK,
        max_batched_tokens=overrides.pop("max_batched_tokens", 4 * PREFILL_CHUNK),
        threads=1,
        check_invariants=True,
        dtype=overrides.pop("dtype", "float32"),
        block_size=overrides.pop("block_size", 16),
        speculation=overrides.pop("speculation", NO_SPECULATION),
    )
    values: dict[str, Any] = {
        "incarnation": time.time_ns(),
        "node_id": "test-node",
        "model_name": "tiny",
        "transports": ("in_process",),
        "heartbeat_s": 0.2,
        "heartbeat_timeout_s": 5.0,
        "ticket_ttl_s": 30.0,
        "reattach_grace_s": 30.0,
        "session_grace_s": 30.0,
        "read_timeout_s": 30.0,
        "read_chunk_blocks": 4,
    }
    return WorkerConfig(worker_id=worker_id, engine=engine, **{**values, **overrides})


class PacedEngine:
    """An engine each of whose steps first waits `delay_s`, or while `held` is set."""

    def __init__(self, engine: LLMEngine, delay_s: float = 0.0) -> None:
        self._engine = engine
        self.delay_s = delay_s
        self.held = False
        self.broken = False

    def step(self) -> object:
        time.sleep(self.delay_s)
        if self.broken:
            raise RuntimeError("the test broke the engine")
        return self._engine.step()

    def has_work(self) -> bool:
        return not self.held and self._engine.has_work()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class Pace:
    """Builds workers whose engine a test can slow down, hold and break."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self._delay_s = delay_s
        self.engine: PacedEngine
        self.assembly: Assembly

    def build(self, config: WorkerConfig) -> Assembly:
        assembly = assemble(config)
        assert isinstance(assembly.engine, LLMEngine)
        self.engine = PacedEngine(assembly.engine, self._delay_s)
        self.assembly = dataclasses.replace(assembly, engine=self.engine)
        return self.assembly


async def eventually(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Returns once `condition()` holds. Raises AssertionError after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not so after {limit_s} s"
        await asyncio.sleep(0.005)


class WorkerLink:
    """What a router and a supervisor would call of one worker."""

    def __init__(self, info: worker_pb2.WorkerInfo) -> None:
        self.info = info
        self.channel = grpc.aio.insecure_channel(info.endpoint)
        self.worker = worker_pb2_grpc.WorkerStub(self.channel)
        self.prefill = prefill_pb2_grpc.PrefillStub(self.channel)

    async def report(self) -> worker_pb2.WorkerReport:
        call = self.worker.Watch(worker_pb2.WatchRequest())
        report = await call.read()
        call.cancel()
        return report

    async def start_prefill(self, *args: Any, **kwargs: Any) -> prefill_pb2.KvTicket:
        return (await self.start_prefill_of(work_request(*args, **kwargs))).ticket

    async def start_prefill_of(self, request: worker_pb2.WorkRequest) -> prefill_pb2.StartResponse:
        return await self.prefill.Start(prefill_pb2.StartRequest(request=request))

    async def until(self, condition: Callable[[worker_pb2.WorkerStats], object]) -> worker_pb2.WorkerStats:
        """Waits until the worker's counts are so. Raises AssertionError after LIMIT_S."""
        call = self.worker.Watch(worker_pb2.WatchRequest(interval_ms=50))
        deadline = time.monotonic() + LIMIT_S
        try:
            async for report in call:
                if condition(report.stats):
                    return report.stats
                assert time.monotonic() < deadline, f"still so: {report.stats}"
        finally:
            call.cancel()
        raise AssertionError("the worker ended its reports")

    async def quiet(self) -> worker_pb2.WorkerStats:
        """Waits until it holds nothing for anybody: free + cached = total, no lease, no quarantine."""
        return await self.until(
            lambda now: (
                now.blocks_free + now.blocks_cached == now.blocks_total
                and not (now.blocks_pinned or now.blocks_quarantined or now.leases)
                and not (now.running or now.waiting)
            )
        )

    async def close(self) -> None:
        await self.channel.close()


class WorkerProcess:
    """A worker in a process of its own, over NIXL."""

    def __init__(self, process: asyncio.subprocess.Process, info: worker_pb2.WorkerInfo) -> None:
        self.process = process
        self.info = info
        self.link = WorkerLink(info)

    @classmethod
    async def spawn(
        cls, role: str, config: WorkerConfig, delay_s: float = 0.0, ucx_tls: str = "tcp,cma"
    ) -> WorkerProcess:
        """Starts it and waits until it serves. `delay_s` slows each engine step down."""
        values = dataclasses.asdict(config)
        values["engine"]["model_dir"] = str(config.engine.model_dir)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
        environment["UCX_TLS"] = ucx_tls
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.worker_process", role, json.dumps(values), str(delay_s)),
            cwd=ROOT,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            while not (line := (await process.stdout.readline()).decode()).startswith(READY):
                assert line, "the worker process ended"
        info = worker_pb2.WorkerInfo.FromString(base64.b64decode(line.removeprefix(READY)))
        return cls(process, info)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> None:
        """Ends it in good order where it still lives; leaves nothing behind."""
        await self.link.close()
        if self.process.returncode is None and self.process.stdin is not None:
            # A test that failed may have left it stopped, and it would not see its stdin end.
            self.signal(signal.SIGCONT)
            self.process.stdin.close()
            try:
                await asyncio.wait_for(self.process.wait(), LIMIT_S)
            finally:
                await self.kill()
        # asyncio's own pipe transports close with the process's last output.
        assert self.process.stdout is not None
        await self.process.stdout.read()
