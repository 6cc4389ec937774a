"""The router's own cost per request: a real router process in front of workers that answer at once.

The same answer is taken from the worker directly, over a session of its own; what the router adds is the
difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import grpc
import httpx
from rich.table import Table

from benchmarks.bars import Spread
from kvrelay import AsyncClient
from kvrelay.v1 import decode_pb2, decode_pb2_grpc, router_pb2, router_pb2_grpc, worker_pb2
from router.config import RouterConfig
from tests.support.fake_workers import FakeDecodeWorker, FakePrefillWorker
from tests.support.tiny_tokenizer import text_folder

ROOT = Path(__file__).resolve().parents[1]
BLOCK_SIZE = 16
PROMPT_TOKENS = 512
REQUESTS = 300
ROUNDS = 5


@contextlib.asynccontextmanager
async def router_process(
    folder: Path, workers: Sequence[worker_pb2.WorkerInfo]
) -> AsyncIterator[dict[str, str]]:
    """A router process that knows the workers; yields its addresses by door."""
    addresses = folder / "addresses.json"
    config = RouterConfig(
        router_id="bench", served_name="bench", model_dir=text_folder(folder / "model"),
        block_size=BLOCK_SIZE, max_model_len=4096, http_port=0, grpc_port=0, local_prefill_tokens=0,
        addresses_file=addresses, log_level="warning",
    )  # fmt: skip
    (folder / "router.json").write_text(config.model_dump_json())
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "--config", str(folder / "router.json")),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])},
    )
    try:
        while not addresses.exists():
            assert process.returncode is None, "the router ended"
            await asyncio.sleep(0.05)
        found: dict[str, str] = json.loads(addresses.read_text())
        async with grpc.aio.insecure_channel(found["admin"]) as channel:
            table = router_pb2.WorkerTable(version=1, workers=workers)
            await router_pb2_grpc.RouterAdminStub(channel).SetWorkers(table)
        async with httpx.AsyncClient() as http:
            async with asyncio.timeout(60):
                while (await http.get(f"http://{found['http']}/ready")).status_code != 200:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)
        yield found
    finally:
        process.terminate()
        await process.wait()


async def _timed(call: Callable[[], Awaitable[object]], concurrency: int) -> tuple[list[float], float]:
    """Latency of each request, s, and requests a second."""
    latencies: list[float] = []

    async def worker() -> None:
        for _ in range(REQUESTS // concurrency):
            start = time.perf_counter()
            await call()
            latencies.append(time.perf_counter() - start)

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return latencies, len(latencies) / (time.perf_counter() - start)


class _DirectSession:
    """A router's session stream without the router."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = decode_pb2_grpc.DecodeStub(channel).Session()
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._number = 0
        self._writing = asyncio.Lock()  # a call takes one message at a time
        self._reader = asyncio.ensure_future(self._read())

    async def hello(self) -> None:
        await self._call.write(decode_pb2.DecodeCommand(hello=decode_pb2.Hello(router_id="direct")))

    async def _read(self) -> None:
        async for events in self._call:
            for end in events.ends:
                self._waiting.pop(end.request_id).set_result(None)

    async def ask(self, submit: decode_pb2.Submit) -> None:
        self._number += 1
        request_id = f"direct-{self._number}"
        command = decode_pb2.DecodeCommand(submit=submit)
        command.submit.request.request_id = request_id
        self._waiting[request_id] = asyncio.get_running_loop().create_future()
        done = self._waiting[request_id]
        async with self._writing:
            await self._call.write(command)
        await done

    async def close(self) -> None:
        self._call.cancel()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


async def measure_router() -> Table:
    """Latency and rate through each door and without the router, one at a time and 32 at once."""
    prompt = [7 + number % 200 for number in range(PROMPT_TOKENS)]
    prefill, decode = (
        FakePrefillWorker("prefill-0", BLOCK_SIZE),
        FakeDecodeWorker("decode-0", BLOCK_SIZE, follow=False),
    )
    await prefill.start()
    await decode.start()
    submit = decode_pb2.Submit(
        request=worker_pb2.WorkRequest(attempt=1, prompt_token_ids=prompt, sampling={"max_tokens": 1})
    )
    body = {"model": "bench", "prompt": prompt, "max_tokens": 1, "temperature": 0}
    table = Table(
        "path", "at once", "latency ms", "requests/s", "router adds ms",
        title=f"Router with workers that answer at once ({PROMPT_TOKENS} prompt tokens, 1 token out)",
    )  # fmt: skip
    try:
        with tempfile.TemporaryDirectory() as folder:
            async with (
                router_process(Path(folder), [prefill.info, decode.info]) as found,
                AsyncClient(found["grpc"]) as client,
                httpx.AsyncClient(base_url=f"http://{found['http']}") as http,
                grpc.aio.insecure_channel(decode.info.endpoint) as channel,
            ):
                direct = _DirectSession(channel)
                await direct.hello()
                paths: dict[str, Callable[[], Awaitable[object]]] = {
                    "worker alone": lambda: direct.ask(submit),
                    "gRPC": lambda: client.generate(token_ids=prompt, temperature=0.0, max_tokens=1),
                    "HTTP": lambda: http.post("/v1/completions", json=body),
                }
                for concurrency in (1, 32):
                    await _compare(paths, concurrency, table)
                await direct.close()
    finally:
        await prefill.stop()
        await decode.stop()
    return table


async def _compare(paths: dict[str, Callable[[], Awaitable[object]]], concurrency: int, table: Table) -> None:
    """Adds a row for each path; paths take turns, round by round."""
    latencies: dict[str, list[float]] = {name: [] for name in paths}
    rates: dict[str, list[float]] = {name: [] for name in paths}
    for number in range(ROUNDS + 1):
        for name, call in paths.items():
            found, rate = await _timed(call, concurrency)
            if number:  # the first round warms up
                latencies[name].append(Spread.of(found).median)
                rates[name].append(rate)
    base = latencies["worker alone"]
    for name in paths:
        added = Spread.of([own - alone for own, alone in zip(latencies[name], base, strict=True)])
        table.add_row(
            name,
            str(concurrency),
            Spread.of(latencies[name]).text(1e3, 2),
            Spread.of(rates[name]).text(digits=0),
            "" if name == "worker alone" else added.text(1e3, 2),
        )
