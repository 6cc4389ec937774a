"""What long prompts cost those who are being answered: TPOT with and without prompts arriving.

    python benchmarks/interference.py [--model demo] [--rounds 5] [--running 4] [--output-tokens 96]

First on one engine that prefills locally, on a thread of its own as workers have it; then on a prefill and
a decode worker, real processes joined by NIXL, each pinned to a core of its own with one thread. Rounds
alternate: the same requests alone, then with prompts of 2,000 tokens arriving one after the other, the next
as soon as one is done. TPOT is a request's mean time between tokens; the gaps between single tokens are
shown beside it. What counts is the ratio of the two within a round.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.bars import Bars, Spread
from benchmarks.handover import random_prompt
from cluster.environment import read_environment
from cluster.model_store.progress import silent
from cluster.model_store.store import resolve
from engine.api import EngineRequest, SamplingParams, StepOutput
from engine.config import MAX_DECODE_SLOWDOWN, EngineConfig
from engine.loop import EngineLoop
from kvrelay.v1 import prefill_pb2
from tests.support.requests import work_request
from tests.support.router_client import Reply, RouterClient
from tests.support.workers import WorkerProcess, eventually, worker_config
from worker.assembly import assemble
from worker.config import WorkerConfig

LOCAL_BAR, DISAGGREGATED_BAR = 1.5, 1.1
PROMPT_TOKENS = 2000
SHORT_PROMPT_TOKENS = 64
MAX_MODEL_LEN = 4096
KV_BLOCKS = 1024
_LIMIT_S = 600.0


@dataclass(slots=True)
class Times:
    """When each token of each request came, seconds."""

    of: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def tpot_s(self) -> list[float]:
        """Each request's mean time between its tokens."""
        return [(times[-1] - times[0]) / (len(times) - 1) for times in self.of.values()]

    def gaps_s(self) -> list[float]:
        """All times between two tokens of a request."""
        return [b - a for times in self.of.values() for a, b in pairwise(times)]


@dataclass(slots=True)
class Rounds:
    """Pairs of rounds."""

    alone: list[Times] = field(default_factory=list)
    loaded: list[Times] = field(default_factory=list)

    def ratios(self, percent: int, values: Callable[[Times], list[float]]) -> list[float]:
        """Loaded by alone, of a percentile within each pair."""
        return [
            percentile(values(loaded), percent) / percentile(values(alone), percent)
            for alone, loaded in zip(self.alone, self.loaded, strict=True)
        ]


def percentile(values: Sequence[float], percent: int) -> float:
    """The least value that `percent` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


class LocalEngine:
    """One engine on its thread. `watched` requests are timed."""

    def __init__(self, config: EngineConfig) -> None:
        parts = assemble(WorkerConfig("interference-0", 1, "local", "interference", config, transports=()))
        self._loop = EngineLoop(parts.engine, self._on_step, self._on_failure)
        self._changed = threading.Condition()
        self._ended: set[str] = set()
        self._times = Times()
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._loop.start()

    def stop(self) -> None:
        """Ends it."""
        self._loop.stop()

    def run(self, requests: Sequence[EngineRequest], prompts: Iterator[EngineRequest] | None) -> Times:
        """Runs requests to their end; with `prompts`, one of these at a time from their first tokens on."""
        self._times = Times()
        names = {request.request_id for request in requests}
        for request in requests:
            self._submit(request)
        self._wait(lambda: all(len(self._times.of[name]) >= 2 for name in names))
        while prompts is not None and not names <= self._ended:
            prompt = next(prompts)
            self._submit(prompt)
            self._wait(lambda name=prompt.request_id: name in self._ended or names <= self._ended)  # type: ignore[misc]
            if prompt.request_id not in self._ended:
                self._loop.call(lambda engine, name=prompt.request_id: engine.cancel(name)).result()  # type: ignore[misc]
        self._wait(lambda: names <= self._ended)
        result = Times()
        result.of.update({name: self._times.of[name] for name in names})
        return result

    def _submit(self, request: EngineRequest) -> None:
        self._loop.call(lambda engine: engine.submit(request)).result()

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._failure or condition(), _LIMIT_S) or self._failure:
                raise RuntimeError(f"the engine did not get there: {self._failure}")

    def _on_step(self, output: StepOutput) -> None:
        now_s = time.perf_counter()
        with self._changed:
            for token in output.tokens:
                self._times.of[token.request_id].append(now_s)
                if token.finish_reason is not None:
                    self._ended.add(token.request_id)
            self._changed.notify_all()

    def _on_failure(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()


class Requests:
    """Makes requests, none of which shares a prefix with another."""

    def __init__(self, output_tokens: int) -> None:
        self._randomness = random.Random(0)
        self._output_tokens = output_tokens
        self._number = 0

    def short(self, count: int) -> list[EngineRequest]:
        """Those that are timed."""
        return [self._one(SHORT_PROMPT_TOKENS, self._output_tokens) for _ in range(count)]

    def prompts(self) -> Iterator[EngineRequest]:
        """Long prompts with the shortest answer that still decodes."""
        while True:
            yield self._one(PROMPT_TOKENS, 2)

    def _one(self, length: int, max_tokens: int) -> EngineRequest:
        self._number += 1
        sampling = SamplingParams(0.0, 1.0, 0, 0, 0, max_tokens, ignore_eos=True)
        prompt = tuple(random_prompt(length, self._randomness))
        return EngineRequest(f"r{self._number}", prompt, sampling)


def measure_local(model_dir: Path, rounds: int, running: int, requests: Requests, slowdown: float) -> Rounds:
    """Pairs of rounds on one engine; the first pair warms up and is dropped."""
    settings = EngineConfig(model_dir=model_dir, num_blocks=KV_BLOCKS, max_model_len=MAX_MODEL_LEN)
    engine = LocalEngine(replace(settings, max_decode_slowdown=slowdown))
    engine.start()
    result = Rounds()
    try:
        for number in range(rounds + 1):
            alone = engine.run(requests.short(running), None)
            loaded = engine.run(requests.short(running), requests.prompts())
            if number:
                result.alone.append(alone)
                result.loaded.append(loaded)
    finally:
        engine.stop()
    return result


@contextlib.contextmanager
def pinned_to(core: int) -> Iterator[None]:
    """Processes started within inherit the core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Disaggregated:
    """A prefill and a decode worker, each on a core of its own, and a router in front."""

    def __init__(self, prefill: WorkerProcess, router: RouterClient) -> None:
        self._prefill = prefill
        self._router = router

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, model_dir: Path) -> AsyncIterator[Disaggregated]:
        """Starts both processes. Raises SystemExit with fewer than two cores."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise SystemExit("two workers need a core each; this process may use one")
        async with AsyncExitStack() as stack:
            workers = []
            for role, core in zip(("prefill", "decode"), cores, strict=False):
                config = worker_config(
                    model_dir,
                    f"{role}-0",
                    num_blocks=KV_BLOCKS,
                    max_model_len=MAX_MODEL_LEN,
                    transports=("nixl",),
                )
                engine = replace(
                    config.engine, check_invariants=False, prefill_chunk=256, max_batched_tokens=512
                )
                with pinned_to(core):
                    worker = await WorkerProcess.spawn(role, replace(config, engine=engine))
                stack.push_async_callback(worker.stop)
                workers.append(worker)
            router = await stack.enter_async_context(RouterClient(workers[1].info.endpoint))
            yield cls(workers[0], router)

    async def run(self, requests: Sequence[EngineRequest], prompts: Iterator[EngineRequest] | None) -> Times:
        """As `LocalEngine.run`."""
        replies = [await self._submit(request) for request in requests]
        await eventually(lambda: all(len(reply.tokens) >= 2 for reply in replies), _LIMIT_S)
        ends: asyncio.Future[object] = asyncio.ensure_future(
            asyncio.gather(*(reply.ended.wait() for reply in replies))
        )
        while prompts is not None and not ends.done():
            prompt = await self._submit(next(prompts))
            ended: asyncio.Future[object] = asyncio.ensure_future(prompt.ended.wait())
            await asyncio.wait((ends, ended), return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        async with asyncio.timeout(_LIMIT_S):
            await asyncio.gather(*(reply.ended.wait() for reply in self._router.replies.values()))
        failed = [r.end for r in self._router.replies.values() if r.end is None or r.end.HasField("error")]
        if failed:
            raise RuntimeError(f"not every answer came to its good end: {failed[0]}")
        return Times({str(number): reply.times_s for number, reply in enumerate(replies)})

    async def _submit(self, request: EngineRequest) -> Reply:
        wanted = work_request(
            request.request_id, list(request.prompt_token_ids), max_tokens=request.sampling.max_tokens
        )
        start = prefill_pb2.StartRequest(request=wanted)
        ticket = (await self._prefill.link.prefill.Start(start)).ticket
        return self._router.submit(wanted, ticket)


async def measure_disaggregated(model_dir: Path, rounds: int, running: int, requests: Requests) -> Rounds:
    """Pairs of rounds on two workers; the first pair warms up and is dropped."""
    result = Rounds()
    async with Disaggregated.start(model_dir) as workers:
        for number in range(rounds + 1):
            alone = await workers.run(requests.short(running), None)
            loaded = await workers.run(requests.short(running), requests.prompts())
            if number:
                result.alone.append(alone)
                result.loaded.append(loaded)
    return result


def report(title: str, rounds: Rounds, bar: float, bars: Bars) -> Table:
    """A table of one case; its bar is on the p99 of TPOT."""
    table = Table(
        "", "alone, ms", "with prompts, ms", "ratio", title=f"{title}: median and extremes of rounds"
    )
    for name, values in (("TPOT", Times.tpot_s), ("gap between tokens", Times.gaps_s)):
        for percent in (50, 99):
            alone, loaded = (
                Spread.of([percentile(values(times), percent) for times in side]).text(1e3)
                for side in (rounds.alone, rounds.loaded)
            )
            ratios = rounds.ratios(percent, values)
            table.add_row(f"{name}, p{percent}", alone, loaded, Spread.of(ratios).text(digits=2))
    ratio = statistics.median(rounds.ratios(99, Times.tpot_s))
    bars.require(ratio <= bar, f"{title}: p99 TPOT with prompts is {ratio:.2f} of without, more than {bar}")
    return table


def main(
    model: Annotated[str, typer.Option(help="Model name, folder or hub id.")] = "demo",
    rounds: Annotated[int, typer.Option(min=1, help="Measured pairs of rounds.")] = 5,
    running: Annotated[int, typer.Option(min=1, help="Requests that are timed.")] = 4,
    output_tokens: Annotated[int, typer.Option(min=3, help="Tokens of each answer.")] = 96,
    max_decode_slowdown: Annotated[float, typer.Option(help="Of the local engine.")] = (MAX_DECODE_SLOWDOWN),
    cases: Annotated[str, typer.Option(help="Of local and disaggregated.")] = "local,disaggregated",
) -> None:
    """Exits 1 where a bar is missed."""
    console, bars = Console(width=120), Bars()
    folder = resolve(model, read_environment().home, silent).path
    requests = Requests(output_tokens)
    for case in cases.split(","):
        if case == "local":
            measured = measure_local(folder, rounds, running, requests, max_decode_slowdown)
            console.print(report("One engine", measured, LOCAL_BAR, bars))
        elif case == "disaggregated":
            measured = asyncio.run(measure_disaggregated(folder, rounds, running, requests))
            console.print(report("Disaggregated", measured, DISAGGREGATED_BAR, bars))
        else:
            raise SystemExit(f"unknown case {case!r}; known are local and disaggregated")
    bars.exit()


if __name__ == "__main__":
    typer.run(main)
