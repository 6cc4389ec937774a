"""The router's own cost per token: CPU time of a real router process behind which many answers stream.

    python benchmarks/router_tokens.py [--tokens N]

The workers cost nothing: one message a step carries a token for every running request, as a real decode
worker's does. CPU time is the router process's own (proc_pid_stat(5)), so that what else runs here counts
little. Exits 1 where a token costs more than the bar.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.bars import Bars, Spread
from benchmarks.router_overhead import BLOCK_SIZE, router_process
from kvrelay import AsyncClient
from kvrelay.v1 import common_pb2, decode_pb2, worker_pb2
from kvrelay.v1.decode_pb2_grpc import DecodeServicer, add_DecodeServicer_to_server
from tests.support.fake_workers import FakePrefillWorker
from tests.support.fake_workers.process import FakeWorker

STREAMS = (16, 64)
STEP_S = 0.02
ROUNDS = 3
PROMPT_TOKENS = 128
# Of one core: at 16 streams and 400 tokens/s, 6 and 10 %. Of these, 7 are grpc.aio's own write.
BARS_US = {"HTTP": 150.0, "gRPC": 250.0}
_TICKS = os.sysconf("SC_CLK_TCK")
_TOKEN = 97


class SteppingWorker(FakeWorker, DecodeServicer):
    """Decodes all its requests in step: every `STEP_S` one message with a token for each."""

    def __init__(self) -> None:
        super().__init__("decode-0", worker_pb2.WORKER_ROLE_DECODE, BLOCK_SIZE)

    def _register(self, server: grpc.aio.Server) -> None:
        add_DecodeServicer_to_server(self, server)

    async def Session(  # noqa: N802 - gRPC names it
        self, request_iterator: AsyncIterator[decode_pb2.DecodeCommand], context: Any
    ) -> AsyncIterator[decode_pb2.DecodeEvents]:
        """One router's requests."""
        running: dict[str, tuple[decode_pb2.Submit, int]] = {}
        reader = self.spawn(self._read(request_iterator, running))
        try:
            while True:
                await asyncio.sleep(STEP_S)
                yield self._step(running)
        finally:
            reader.cancel()

    @staticmethod
    async def _read(
        commands: AsyncIterator[decode_pb2.DecodeCommand], running: dict[str, tuple[decode_pb2.Submit, int]]
    ) -> None:
        async for command in commands:
            if command.HasField("submit"):
                running[command.submit.request.request_id] = command.submit, 0

    @staticmethod
    def _step(running: dict[str, tuple[decode_pb2.Submit, int]]) -> decode_pb2.DecodeEvents:
        message = decode_pb2.DecodeEvents(heartbeat=not running)
        for request_id, (submit, index) in list(running.items()):
            work = submit.request
            message.tokens.add(
                request_id=request_id, attempt=work.attempt, index=index, token_ids=[_TOKEN + index % 26]
            )
            running[request_id] = submit, index + 1
            if index + 1 == work.sampling.max_tokens:
                del running[request_id]
                message.ends.add(
                    request_id=request_id,
                    attempt=work.attempt,
                    finish_reason=common_pb2.FINISH_REASON_LENGTH,
                )
        return message


def _cpu_s(pid: int) -> float:
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def _over_http(address: str, body: bytes) -> int:
    """Streams one answer; returns how many chunks had text. The least that a client can do."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    received = bytearray()
    while data := await reader.read(1 << 16):
        received += data
    writer.close()
    return received.count(b'"finish_reason":null')


async def _over_grpc(client: AsyncClient, prompt: list[int], tokens: int) -> int:
    stream = client.stream(token_ids=prompt, max_tokens=tokens, temperature=0.0, ignore_eos=True)
    return sum([len(event.token_ids) async for event in stream])


async def measure_tokens(tokens: int, bars: Bars) -> Table:
    """CPU time of the router for each token, through both doors."""
    prompt = [7 + number % 200 for number in range(PROMPT_TOKENS)]
    settings = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body = json.dumps({"model": "bench", "prompt": prompt, **settings}).encode()
    table = Table(
        "door", "streams", "router CPU, us a token", "share of a core",
        title=f"Router, cost per token ({tokens} a stream)",
    )  # fmt: skip
    prefill, decode = FakePrefillWorker("prefill-0", BLOCK_SIZE), SteppingWorker()
    await prefill.start()
    await decode.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            async with (
                router_process(Path(folder), [prefill.info, decode.info]) as found,
                AsyncClient(found["grpc"]) as client,
            ):
                doors: dict[str, Callable[[], Coroutine[Any, Any, int]]] = {
                    "HTTP": lambda: _over_http(found["http"], body),
                    "gRPC": lambda: _over_grpc(client, prompt, tokens),
                }
                for streams in STREAMS:
                    for name, ask in doors.items():
                        samples, shares = await _measure(ask, streams, tokens, int(found["pid"]), bars)
                        cost = Spread.of(samples)
                        share = Spread.of(shares)
                        table.add_row(name, str(streams), cost.text(), f"{share.median:.0%}")
                        statement = f"{name}, {streams} streams: a token costs at most {BARS_US[name]:.0f} us"
                        bars.require(cost.median <= BARS_US[name], f"{statement}: {cost.median:.0f}")
    finally:
        await prefill.stop()
        await decode.stop()
    return table


async def _measure(
    ask: Callable[[], Coroutine[Any, Any, int]], streams: int, tokens: int, pid: int, bars: Bars
) -> tuple[list[float], list[float]]:
    """Microseconds of CPU a token and share of a core, of each round."""
    costs, shares = [], []
    await asyncio.gather(*(ask() for _ in range(streams)))
    for _ in range(ROUNDS):
        before, began = _cpu_s(pid), asyncio.get_running_loop().time()
        counts = await asyncio.gather(*(ask() for _ in range(streams)))
        used, took = _cpu_s(pid) - before, asyncio.get_running_loop().time() - began
        # Chunks that were joined, or without text, would make a token look cheap.
        bars.require(min(counts) >= 0.95 * tokens, f"{streams} streams: only {min(counts)} of {tokens} came")
        costs.append(used / (streams * tokens) * 1e6)
        shares.append(used / took)
    return costs, shares


def main(tokens: Annotated[int, typer.Option(min=32, help="Tokens of each answer.")] = 400) -> None:
    """Measures both doors. Exits 1 where a bar is missed."""
    bars = Bars()
    Console().print(asyncio.run(measure_tokens(tokens, bars)))
    bars.exit()


if __name__ == "__main__":
    typer.run(main)
