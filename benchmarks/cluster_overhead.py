"""The whole cluster beside the bare engine: what HTTP, router and handover leave of its speed.

One deployment as `kvrelay up` starts it, one engine in a process of its own; they take turns with the same
prompts in one run. Answers are streamed, as a user's are.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.bars import Spread
from benchmarks.engine_bars import Verdict
from benchmarks.peers.process import Command
from benchmarks.peers.protocol import Run
from benchmarks.rounds import FIRST_TOKEN, LAST_TOKEN, Sample, Workload, started
from tests.support.live_cluster import live_cluster

LOADED = Workload(16, 128, 128)
LONG_PROMPT = Workload(1, 512, 16)
# The engine beside it has none.
WITHOUT_DRAFTS = {"speculation": {"method": "none"}}
LEAST_SPEED = 0.90
MOST_TTFT = 1.15


@dataclass(frozen=True, slots=True)
class Pair:
    """One turn of each."""

    bare: Sample
    cluster: Sample


class StreamError(RuntimeError):
    """The deployment answered something else than a whole stream."""


async def _stream(
    url: str, model: str, prompt: Sequence[int], output_tokens: int, start: float
) -> list[float]:
    """Seconds from `start` to each chunk with a token; the answer must have all its tokens.

    Over a bare socket: the client shares the cores with what it measures, so it must cost next to nothing.
    """
    address = urlsplit(url)
    body = json.dumps({
        "model": model, "prompt": list(prompt), "max_tokens": output_tokens, "temperature": 0,
        "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
    }).encode()  # fmt: skip
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    seconds: list[float] = []
    lines: list[bytes] = []
    async for line in reader:
        if line.startswith(b"data: {"):
            seconds.append(time.perf_counter() - start)
            lines.append(line)
    writer.close()
    usage = json.loads(lines[-1].removeprefix(b"data: ")).get("usage") if lines else None
    if usage is None or usage["completion_tokens"] != output_tokens:
        raise StreamError(f"{output_tokens} tokens were asked for; the stream's usage says {usage}")
    return seconds


async def _run(url: str, model: str, prompts: Sequence[Sequence[int]], workload: Workload) -> Sample:
    """All prompts at once through the HTTP door."""
    start = time.perf_counter()
    tokens = workload.output_tokens
    streams = await asyncio.gather(*(_stream(url, model, prompt, tokens, start) for prompt in prompts))
    ttft = max(seconds[0] for seconds in streams)
    total = max(seconds[-1] for seconds in streams)
    # A chunk may carry several tokens, so no rate after the first one is told.
    return Sample(ttft, total, len(prompts) * tokens / total, 0.0, [])


def measure_cluster(
    model: str, bare: Command, settings: Mapping[str, object], logs: Path, console: Console, rounds: int
) -> dict[Workload, list[Pair]]:
    """Pairs for both workloads, round by round; one round more warms up.

    Args:
        model: folder.
        bare: how the engine alone is started.
        settings: of the deployment, beside its model.
        logs: folder for the engine's log.
        console: for progress.
        rounds: that count.
    """
    randomness = random.Random(1)
    pairs: dict[Workload, list[Pair]] = {LOADED: [], LONG_PROMPT: []}
    with (
        tempfile.TemporaryDirectory() as folder,
        live_cluster(Path(folder), {"model": model, **WITHOUT_DRAFTS, **settings}) as cluster,
        started([bare], logs, console) as (runner,),
        Progress(console=console) as progress,
    ):
        url, name = cluster.state.http_url, cluster.state.served_name
        task = progress.add_task("cluster", total=(rounds + 1) * len(pairs))
        for number in range(rounds + 1):
            for workload, found in pairs.items():
                prompts = [
                    [randomness.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(workload.prompt_tokens)]
                    for _ in range(workload.batch)
                ]
                alone: Run = runner.run(prompts, workload.output_tokens)
                whole = asyncio.run(_run(url, name, prompts, workload))
                if number:
                    found.append(Pair(Sample.of(alone, workload), whole))
                progress.advance(task)
    return pairs


def cluster_verdicts(pairs: Mapping[Workload, Sequence[Pair]]) -> list[Verdict]:
    """Both bars."""
    speed = Spread.of([pair.cluster.tokens_per_s / pair.bare.tokens_per_s for pair in pairs[LOADED]])
    ttft = Spread.of([pair.cluster.ttft_s / pair.bare.ttft_s for pair in pairs[LONG_PROMPT]])
    return [
        Verdict(
            f"whole cluster, {LOADED.name}: at least {LEAST_SPEED:.0%} of the bare engine's tokens/s",
            f"{speed.text(100, 0)} %",
            speed.median >= LEAST_SPEED,
        ),
        Verdict(
            f"whole cluster, {LONG_PROMPT.prompt_tokens} tokens: TTFT at most {MOST_TTFT}x of the engine's",
            f"{ttft.text(digits=2)}",
            ttft.median <= MOST_TTFT,
        ),
    ]


def cluster_table(pairs: Mapping[Workload, Sequence[Pair]]) -> Table:
    """Both workloads, with and without the cluster."""
    table = Table(
        "workload", "tokens/s bare", "tokens/s cluster", "TTFT ms bare", "TTFT ms cluster",
        title=r"Whole cluster over HTTP streams: median \[least .. greatest]",
    )  # fmt: skip
    for workload, found in pairs.items():
        table.add_row(
            f"{workload.batch} x {workload.prompt_tokens} in, {workload.output_tokens} out",
            Spread.of([pair.bare.tokens_per_s for pair in found]).text(),
            Spread.of([pair.cluster.tokens_per_s for pair in found]).text(),
            Spread.of([pair.bare.ttft_s for pair in found]).text(1e3, 0),
            Spread.of([pair.cluster.ttft_s for pair in found]).text(1e3, 0),
        )
    return table
