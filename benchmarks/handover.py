"""Cost of the handover: disaggregated against aggregated, in one run, on the same engine and prompts.

    python benchmarks/handover.py [--model demo] [--rounds 7] [--output-tokens 32]

Two clusters run side by side, one with a prefill and a decode worker (remote prefill forced), one with a
decode worker alone; each worker has one thread. Requests alternate between the two, so that noise of the
machine meets both; what counts is the ratio within a pair. The router's own overhead is measured against
workers that answer at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.bars import Bars, Spread
from benchmarks.clusters import DISAGGREGATED
from benchmarks.router_overhead import measure_router
from cluster.environment import read_environment
from cluster.model_store.progress import silent
from cluster.model_store.store import resolve
from kvrelay import AsyncClient, Timeline
from tests.support.live_cluster import live_cluster

ONE_THREAD = {"threads": 1}
# No two prompts may share a prefix, or the second would be a cache hit.
FIRST_TOKEN, LAST_TOKEN = 100, 40_000


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Seconds as the client saw them."""

    ttft_s: float
    total_s: float
    tokens: int
    timeline: Timeline

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first, by the time that they took."""
        return (self.tokens - 1) / (self.total_s - self.ttft_s)


async def measure(client: AsyncClient, prompt: Sequence[int], output_tokens: int) -> Sample:
    """Streams one greedy answer of a fixed length."""
    start = time.perf_counter()
    first = 0.0
    stream = client.stream(
        token_ids=prompt, temperature=0.0, max_tokens=output_tokens, ignore_eos=True, timeout=600
    )
    async for chunk in stream:
        if chunk.token_ids and not first:
            first = time.perf_counter() - start
    generation = await stream.result()
    total = time.perf_counter() - start
    assert generation.timeline is not None
    return Sample(first, total, generation.usage.completion_tokens, generation.timeline)


async def throughput(client: AsyncClient, prompts: Sequence[Sequence[int]], output_tokens: int) -> float:
    """Output tokens a second of all prompts at once."""
    start = time.perf_counter()
    samples = await asyncio.gather(*(measure(client, prompt, output_tokens) for prompt in prompts))
    return sum(sample.tokens for sample in samples) / (time.perf_counter() - start)


def random_prompt(length: int, randomness: random.Random) -> list[int]:
    """Token ids that share no prefix with any other prompt."""
    return [randomness.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(length)]


def _row(length: int, together: Sequence[Sample], apart: Sequence[Sample]) -> list[str]:
    """One line of the table from pairs of aggregated and disaggregated samples."""
    pairs = list(zip(together, apart, strict=True))
    return [
        str(length),
        Spread.of([sample.ttft_s for sample in together]).text(1e3),
        Spread.of([sample.ttft_s for sample in apart]).text(1e3),
        Spread.of([b.ttft_s / a.ttft_s for a, b in pairs]).text(digits=2),
        Spread.of([b.tokens_per_s / a.tokens_per_s for a, b in pairs]).text(digits=2),
        Spread.of([b.timeline.transfer_s / b.ttft_s for b in apart]).text(100),
        Spread.of([b.timeline.transfer_busy_s for b in apart]).text(1e3),
        f"{apart[0].timeline.transfer_bytes / 2**20:.1f}",
    ]


async def compare(
    together: AsyncClient, apart: AsyncClient, lengths: Sequence[int], rounds: int, tokens: int, bars: Bars
) -> list[Table]:
    """Both tables: single requests, and four at once."""
    randomness = random.Random(0)
    single = Table(
        "prompt", "TTFT ms aggregated", "TTFT ms disaggregated", "TTFT ratio", "tokens/s ratio",
        "transfer, % of TTFT", "reads ms", "MiB",
        title=r"One request at a time: median \[least .. greatest]",
    )  # fmt: skip
    loaded = Table(
        "prompt", "tokens/s aggregated", "tokens/s disaggregated", "ratio",
        title="Four requests at once, all output tokens by all time",
    )  # fmt: skip
    with Progress() as progress:
        task = progress.add_task("handover", total=len(lengths) * (rounds + 1) * 2)
        for length in lengths:
            samples: tuple[list[Sample], list[Sample]] = ([], [])
            rates: tuple[list[float], list[float]] = ([], [])
            for number in range(rounds + 1):
                prompt = random_prompt(length, randomness)
                burst = [random_prompt(length, randomness) for _ in range(4)]
                for which, client in enumerate((together, apart)):
                    sample = await measure(client, prompt, tokens)
                    rate = await throughput(client, burst, tokens)
                    if number:  # the first round warms both up
                        samples[which].append(sample)
                        rates[which].append(rate)
                    progress.advance(task)
            single.add_row(*_row(length, *samples))
            ratios = [b / a for a, b in zip(*rates, strict=True)]
            loaded.add_row(
                str(length), *(Spread.of(rate).text() for rate in rates), Spread.of(ratios).text(digits=2)
            )
            bars.require(
                all(sample.timeline.transport == "nixl" for sample in samples[1]),
                f"{length} tokens: a disaggregated prompt was not moved by NIXL",
            )
            bars.require(
                all(sample.timeline.local_prefill for sample in samples[0]),
                f"{length} tokens: an aggregated prompt was not prefilled locally",
            )
    return [single, loaded]


async def run(model: str, lengths: Sequence[int], rounds: int, output_tokens: int, bars: Bars) -> list[Table]:
    """Starts both clusters and compares them."""
    common: dict[str, object] = {"model": model, "decode": ONE_THREAD}
    alone = common | {"name": "aggregated", "prefill": {"replicas": 0}}
    split = common | {"name": "disaggregated", "prefill": ONE_THREAD, **DISAGGREGATED}
    with contextlib.ExitStack() as stack:
        clusters = [
            stack.enter_context(live_cluster(Path(stack.enter_context(tempfile.TemporaryDirectory())), spec))
            for spec in (alone, split)
        ]
        addresses = [cluster.state.grpc_address for cluster in clusters]
        async with AsyncClient(addresses[0]) as together, AsyncClient(addresses[1]) as apart:
            return await compare(together, apart, lengths, rounds, output_tokens, bars)


def main(
    model: Annotated[str, typer.Option(help="Model name, folder or hub id.")] = "demo",
    lengths: Annotated[str, typer.Option(help="Prompt lengths, tokens.")] = "128,512,2000",
    rounds: Annotated[int, typer.Option(help="Measured pairs for each length.")] = 7,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 32,
) -> None:
    """Prints what the handover costs. Exits 1 where a request did not take the path it should."""
    console, bars = Console(width=140), Bars()  # wide enough for every column, also into a file
    # Fetched once: each cluster has a home of its own.
    folder = str(resolve(model, read_environment().home, silent).path)
    sizes = [int(length) for length in lengths.split(",")]
    tables = asyncio.run(run(folder, sizes, rounds, output_tokens, bars))
    tables.append(asyncio.run(measure_router()))
    for table in tables:
        console.print(table)
    bars.exit()


if __name__ == "__main__":
    typer.run(main)
