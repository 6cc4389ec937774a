"""Speculative decoding: tokens per pass and speed of each method; the adaptive operating point under load.

    python benchmarks/speculation.py --prompts DIR [--head DIR] [--parts methods,load] [--limit N]

One model in memory, one engine for each way to speculate. Every round gives all of them the same prompts, one
after the other, who comes first changing from round to round; what counts are ratios within a round. Only
steps in which the whole batch decodes are counted. Exits 1 where a bar is missed.

`methods`: at batch 1, greedily and at temperature 1, on MT-bench, HumanEval and summarising: tokens per
pass of the target, tokens a second beside none, and how often drafts were right by position. `load`: at batch
1, 4, 16 and 32 the adaptive operating point beside none and each fixed number of drafts.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.bars import Bars, Spread
from benchmarks.engine_bars import Verdict, bars_table
from benchmarks.prompts import Prompt, load_prompts
from benchmarks.speculating import NONE, Bench, Stretch, Variant
from cluster.environment import read_environment
from cluster.model_store.heads import known
from cluster.model_store.progress import silent
from cluster.model_store.store import resolve
from engine.api import EngineRequest, SamplingParams
from engine.quantization.registry import NAMES, PLAIN
from engine.speculation.config import SpeculationConfig
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer

SETS = ("mt_bench", "humaneval", "summarize")
BATCHES = (1, 4, 16, 32)
ADAPTIVE_BAR = 0.97
WIDTH = 150  # of every column, also into a file

Samples = dict[str, list[Stretch]]


@dataclass(slots=True)
class Found:
    """Rounds by workload, then by variant."""

    samples: dict[str, Samples] = field(default_factory=dict)

    def take(self, workload: str, variant: Variant, stretch: Stretch) -> None:
        """Notes one round."""
        self.samples.setdefault(workload, {}).setdefault(variant.name, []).append(stretch)

    def rate(self, workload: str, name: str) -> float:
        """Median tokens a second."""
        return Spread.of([stretch.rate for stretch in self.samples[workload][name]]).median

    def ratio(self, workload: str, name: str, other: str) -> Spread:
        """How many times faster one was than another, round by round."""
        samples = self.samples[workload]
        pairs = zip(samples[name], samples[other], strict=True)
        return Spread.of([own.rate / peer.rate for own, peer in pairs])

    def total(self, workload: str, name: str) -> Stretch:
        """All rounds together."""
        return sum(self.samples[workload][name], Stretch())


async def prompt_ids(model_dir: Path, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Token ids of questions in the model's chat form."""
    tokenizer, template = Tokenizer.load(model_dir), ChatTemplate.load(model_dir)
    return [
        tuple(
            await tokenizer.encode(
                template.render([{"role": "user", "content": prompt.text}]), add_special_tokens=False
            )
        )
        for prompt in prompts
    ]


def prompts_of(name: str, folder: Path, model_dir: Path, limit: int) -> list[tuple[int, ...]]:
    """One set's prompts, evenly thinned out to `limit`; 0 for all. Raises SystemExit where there are none."""
    chosen = [prompt for prompt in load_prompts(folder) if prompt.name.startswith(name)]
    if not chosen:
        raise SystemExit(f"no questions of {name} in {folder}")
    step = max(1, len(chosen) // limit) if limit else 1
    return asyncio.run(prompt_ids(model_dir, chosen[::step][: limit or None]))


def requests_of(
    prompts: Sequence[tuple[int, ...]], tokens: int, temperature: float, first_seed: int
) -> list[EngineRequest]:
    """One request for each prompt, with a seed of its own."""
    return [
        EngineRequest(
            str(number),
            ids,
            SamplingParams(
                temperature, top_p=1.0, top_k=0, seed=first_seed + number, choice=0, max_tokens=tokens
            ),
        )
        for number, ids in enumerate(prompts)
    ]


def ways_to_draft(head: SpeculationConfig | None) -> list[Variant]:
    """Methods at their full length: what they give must not depend on what pays here."""
    ways = [
        Variant("ngram", SpeculationConfig(method="ngram", num_speculative_tokens=6, adaptive=False)),
        Variant(
            "suffix", SpeculationConfig(method="suffix", eagle_topk=4, num_draft_tokens=12, adaptive=False)
        ),
    ]
    if head is not None:
        for name, topk, depth, nodes in (("chain", 1, 5, 6), ("tree", 4, 6, 16)):
            speculation = SpeculationConfig(
                method=head.method,
                model=head.model,
                num_speculative_tokens=depth,
                eagle_topk=topk,
                num_draft_tokens=nodes,
                adaptive=False,
            )
            ways.append(Variant(f"{head.method} {name}", speculation))
    return ways


def operating_points(method: SpeculationConfig, most: int) -> list[Variant]:
    """The adaptive one and each fixed number of drafts, 0 left out: none stands beside them."""
    chain = SpeculationConfig(method=method.method, model=method.model, num_speculative_tokens=most)
    fixed = [Variant(f"k = {count}", chain, drafts=count) for count in range(1, most + 1)]
    return [Variant("adaptive", chain), *fixed]


def measure(
    bench: Bench,
    workloads: Mapping[str, tuple[Sequence[EngineRequest], int]],
    variants: Sequence[Variant],
    rounds: int,
    console: Console,
) -> Found:
    """All variants on all workloads (requests, batch), `rounds` times and once before that is not counted."""
    found = Found()
    with Progress(console=console) as progress:
        task = progress.add_task("rounds", total=(rounds + 1) * len(workloads) * len(variants))
        for number in range(rounds + 1):
            for name, (requests, batch) in workloads.items():
                for place in range(len(variants)):
                    variant = variants[(place + number) % len(variants)]
                    progress.update(task, description=f"{name}: {variant.name}")
                    # A tenant of its own each time: no drafter knows the answers of the round before.
                    asked = [replace(request, cache_salt=f"{name} {number}") for request in requests]
                    stretch = bench.run(variant, asked, batch)
                    if number:
                        found.take(name, variant, stretch)
                    progress.advance(task)
    return found


def speed_table(found: Found, title: str) -> Table:
    """Each variant on each workload."""
    columns = ("workload", "drafts", "tokens/pass", "tokens/s", "x of none", "drafts right")
    table = Table(*columns, title=title)
    for workload, samples in found.samples.items():
        for name in samples:
            total = found.total(workload, name)
            right = f"{sum(total.accepted) / total.drafted:.0%}" if total.drafted else "-"
            table.add_row(
                workload,
                name,
                f"{total.per_pass:.2f}",
                f"{found.rate(workload, name):.1f}",
                found.ratio(workload, name, NONE.name).text(digits=2),
                right,
            )
        table.add_section()
    return table


def positions_table(found: Found) -> Table:
    """How often the draft at a position was right, where all before it were; and how often it was in all."""
    table = Table("workload", "drafts", "right by position, of those behind right ones (of all passes)")
    for workload, samples in found.samples.items():
        for name in samples:
            total = found.total(workload, name)
            if not total.drafted:
                continue
            tested = (total.passes, *total.accepted)
            shares = [
                f"{accepted / max(1, min(before, reached)):.2f} ({accepted / total.passes:.2f})"
                for accepted, reached, before in zip(total.accepted, total.reached, tested, strict=False)
            ]
            table.add_row(workload, name, "  ".join(shares))
    return table


def method_verdicts(found: Found, precision: str) -> list[Verdict]:
    """What the methods must reach."""
    heads = sorted({name for samples in found.samples.values() for name in samples if "eagle" in name})
    statements = (
        ("greedy", "a head, greedy: at least 2.5 tokens a pass on average", 2.5),
        ("T=1", "a head at temperature 1: at least 1.9 tokens a pass on average", 1.9),
    )
    verdicts = []
    for kind, statement, least in statements:
        workloads = [workload for workload in found.samples if workload.endswith(kind)]
        if not heads or not workloads:
            verdicts.append(Verdict(statement, "without a head", None))
            continue
        means = {
            head: sum(found.total(workload, head).per_pass for workload in workloads) / len(workloads)
            for head in heads
        }
        best = max(means, key=lambda head: means[head])
        verdicts.append(Verdict(statement, f"{means[best]:.2f} ({best})", means[best] >= least))
    greedy = [workload for workload in found.samples if workload.endswith("greedy")]
    statement = "a head, greedy, fp32, batch 1: at least 1.5x tokens/s"
    if heads and greedy and precision == PLAIN:
        speeds = {
            head: Spread.of(
                [
                    sum(found.samples[workload][head][number].rate for workload in greedy)
                    / sum(found.samples[workload][NONE.name][number].rate for workload in greedy)
                    for number in range(len(found.samples[greedy[0]][head]))
                ]
            )
            for head in heads
        }
        best = max(speeds, key=lambda head: speeds[head].median)
        reached = speeds[best].median >= 1.5
        verdicts.append(Verdict(statement, f"{speeds[best].text(digits=2)} ({best})", reached))
    else:
        verdicts.append(Verdict(statement, "without a head in fp32", None))
    statement = "prompt lookup, summarising, batch 1: at least 1.3x tokens/s"
    ratio = found.ratio("summarize greedy", "ngram", NONE.name)
    verdicts.append(Verdict(statement, ratio.text(digits=2), ratio.median >= 1.3))
    return verdicts


def load_verdicts(found: Found) -> list[Verdict]:
    """The adaptive operating point beside none and the best fixed number, at each batch."""
    verdicts = []
    for workload, samples in found.samples.items():
        fixed = [name for name in samples if name.startswith("k = ")]
        best = max(fixed, key=lambda name: found.rate(workload, name))
        for other in (NONE.name, best):
            ratio = found.ratio(workload, "adaptive", other)
            statement = f"{workload}: adaptive at least {ADAPTIVE_BAR}x of {other}"
            verdicts.append(Verdict(statement, ratio.text(digits=3), ratio.median >= ADAPTIVE_BAR))
    return verdicts


def main(
    prompts: Annotated[Path, typer.Option(help="Folder of question files (.jsonl).")],
    model: Annotated[str, typer.Option(help="Model name, folder or hub id.")] = "demo",
    head: Annotated[Path | None, typer.Option(help="EAGLE-3 head's folder; else the model's own.")] = None,
    parts: Annotated[str, typer.Option(help="Of methods and load.")] = "methods,load",
    load_method: Annotated[str, typer.Option(help="Drafts under load: head or ngram.")] = "head",
    quantization: Annotated[str, typer.Option(help=f"One of {', '.join(NAMES)}.")] = PLAIN,
    batches: Annotated[str, typer.Option(help="Of load.")] = ",".join(map(str, BATCHES)),
    most: Annotated[int, typer.Option(min=1, help="Most drafts under load.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 5,
    limit: Annotated[int, typer.Option(min=0, help="Prompts of each set; 0 takes all.")] = 0,
    tokens: Annotated[int, typer.Option(min=2, help="Most new tokens for each prompt.")] = 96,
    threads: Annotated[int, typer.Option(min=0, help="Of torch; 0 takes all cores.")] = 0,
    kv_bytes: Annotated[int, typer.Option(help="Memory of each engine's pool.")] = 1 << 29,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all samples there.")] = None,
) -> None:
    """Prints what speculation gives. Exits 1 where a bar is missed."""
    chosen = [part for part in parts.split(",") if part]
    if unknown := set(chosen) - {"methods", "load"}:
        raise typer.BadParameter(f"unknown parts {sorted(unknown)}: there are methods and load")
    sizes = [int(size) for size in batches.split(",")]
    console, bars = Console(width=WIDTH), Bars()
    home = read_environment().home
    entry = resolve(model, home, silent)
    theirs = known(entry)
    folder = theirs.head if head is None and theirs is not None else head
    own = None if folder is None else SpeculationConfig(method="eagle3", model=folder)
    bench = Bench(
        entry.path,
        quantization=quantization,
        threads=threads or len(os.sched_getaffinity(0)),
        max_batch=max(sizes),
        kv_bytes=kv_bytes,
    )
    sets = {name: prompts_of(name, prompts, entry.path, limit) for name in SETS}
    report: dict[str, object] = {}
    verdicts: list[Verdict] = []
    if "methods" in chosen:
        workloads: dict[str, tuple[Sequence[EngineRequest], int]] = {
            f"{name} {kind}": (requests_of(ids, tokens, temperature, 1000 * place), 1)
            for kind, temperature in (("greedy", 0.0), ("T=1", 1.0))
            for place, (name, ids) in enumerate(sets.items())
        }
        found = measure(bench, workloads, [NONE, *ways_to_draft(own)], rounds, console)
        console.print(speed_table(found, f"Methods at batch 1 ({quantization})"))
        console.print(positions_table(found))
        verdicts += method_verdicts(found, quantization)
        report["methods"] = asdict(found)
    if "load" in chosen:
        mixed = [ids for group in zip(*sets.values(), strict=False) for ids in group]
        drafts = own if load_method == "head" else SpeculationConfig(method=load_method)
        if drafts is None:
            raise SystemExit("no head comes with this model: name one with --head, or --load-method ngram")
        workloads = {
            f"batch {size}": (
                requests_of((mixed * (2 * size // len(mixed) + 1))[: max(6, 2 * size)], tokens, 0.0, 0),
                size,
            )
            for size in sizes
        }
        found = measure(bench, workloads, [NONE, *operating_points(drafts, most)], rounds, console)
        console.print(speed_table(found, f"Operating point ({drafts.method}, {quantization})"))
        verdicts += load_verdicts(found)
        report["load"] = asdict(found)
    console.print(bars_table(verdicts, bars))
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=1))
    bars.exit()


if __name__ == "__main__":
    typer.run(main)
