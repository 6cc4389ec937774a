"""The part `load`: the adaptive operating point beside no drafts and each fixed number, batch by batch.

A run is the same requests for every variant, decoded in turns of a few tokens a sequence, so that what
disturbs the machine disturbs all of them; its ratios count. Runs are added until the 95 % interval of the
median of both ratios that are judged is narrower than 3 % of it, or until the time is over. Fixed numbers
that are clearly not the best are dropped on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.engine_bars import Verdict
from benchmarks.speculating.bench import Bench, Stream
from benchmarks.speculating.found import Found, rates, run_together
from benchmarks.speculating.intervals import Interval, median_of
from benchmarks.speculating.part import Outcome, Place
from benchmarks.speculating.variants import ADAPTIVE, NONE, Variant, operating_points
from benchmarks.speculating.workloads import mixed, requests_of
from engine.api import EngineRequest
from engine.speculation.config import SpeculationConfig

ADAPTIVE_BAR = 0.97
MOST_SPREAD = 0.03
LEAST_RUNS = 6
_TURN = 8
"""Tokens of each sequence in one variant's turn."""

_WITHIN_REACH = 0.97
_FAR_BEHIND, _RUNS_BEHIND = 0.85, 2
"""Fixed numbers that are slower than that in each of so many runs are dropped before chance can be told."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured.

    Attributes:
        method: drafts.
        batches: sizes.
        most: greatest fixed number of drafts.
        minutes: for each size, at most, but for runs without which nothing can be said.
        tokens: of each request.
    """

    method: SpeculationConfig
    batches: tuple[int, ...]
    most: int
    minutes: float
    tokens: int


def judged(found: Found, workload: str) -> dict[str, Interval]:
    """The adaptive one beside what it is judged against, none and the best fixed number, by their names."""
    others = [NONE.name, best_fixed(found, workload)]
    return {other: median_of(found.ratios(workload, ADAPTIVE, other)) for other in others}


def best_fixed(found: Found, workload: str) -> str:
    """The fixed number that is fastest, of those that were run to the end."""
    samples = found.samples[workload]
    runs = len(samples[NONE.name])
    fixed = [name for name in samples if name not in (NONE.name, ADAPTIVE) and len(samples[name]) == runs]
    return max(fixed, key=lambda name: median_of(found.ratios(workload, name, NONE.name)).value)


def clearly_slower(found: Found, workload: str, names: Sequence[str]) -> list[str]:
    """Those of the fixed numbers that another one leaves behind, far or beyond what chance explains."""
    best = best_fixed(found, workload)
    slower = []
    for name in names:
        ratios = found.ratios(workload, name, best)
        ratio = median_of(ratios)
        is_far = len(ratios) >= _RUNS_BEHIND and max(ratios) < _FAR_BEHIND
        is_behind = ratio.is_known and ratio.high < 1 and ratio.value < _WITHIN_REACH
        if name != best and (is_far or is_behind):
            slower.append(name)
    return slower


def is_settled(found: Found, workload: str) -> bool:
    """Whether there are enough runs."""
    runs = len(found.samples[workload][ADAPTIVE])
    return runs >= LEAST_RUNS and all(
        ratio.spread < MOST_SPREAD for ratio in judged(found, workload).values()
    )


def load_verdicts(found: Found) -> list[Verdict]:
    """Each batch against both.

    Where the spread is too great the bar is reached only if it lies below all of the interval.
    """
    verdicts = []
    for workload, samples in found.samples.items():
        runs = len(samples[ADAPTIVE])
        for other, ratio in judged(found, workload).items():
            is_sure = ratio.spread < MOST_SPREAD
            measured = f"{ratio.text(digits=3)} in {runs} runs"
            if not is_sure:
                measured += f", spread {ratio.spread:.1%} is not below {MOST_SPREAD:.0%}"
            least = ratio.value if is_sure else ratio.low
            statement = f"{workload}: adaptive at least {ADAPTIVE_BAR}x of {other}"
            verdicts.append(Verdict(statement, measured, least >= ADAPTIVE_BAR))
    return verdicts


def measure_batch(
    bench: Bench,
    workload: str,
    requests: Sequence[EngineRequest],
    batch: int,
    variants: Sequence[Variant],
    minutes: float,
    found: Found,
    console: Console,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Adds runs to `found` until it is settled, after one that does not count, or until the time is over."""
    end_s = clock() + 60 * minutes
    active = {variant.name: variant for variant in variants}
    number = 0
    with Progress(console=console) as progress:
        task = progress.add_task(workload, total=None)
        while True:
            streams = {
                name: Stream(bench.engine(variant), requests, batch) for name, variant in active.items()
            }
            stretches = run_together(streams, _TURN * batch, number)
            if number:
                found.take(workload, stretches)
            number += 1
            if number > LEAST_RUNS and (is_settled(found, workload) or clock() > end_s):
                return
            if number > 1:
                fixed = [name for name in active if name not in (NONE.name, ADAPTIVE)]
                for name in clearly_slower(found, workload, fixed):
                    bench.close(active.pop(name))
            progress.update(task, description=f"{workload}, {number} runs: {', '.join(active)}")


def run_load(place: Place, load: Load) -> Outcome:
    """Measures and judges."""
    found = Found()
    variants = [NONE, *operating_points(load.method, load.most)]
    for size in load.batches:
        # Sequences end at different times, and others take their places as long as there are any.
        prompts = mixed(list(place.sets.values()), size + max(5, size // 2))
        requests = requests_of(prompts, load.tokens)
        bench = Bench(place.loaded, size, requests)
        measure_batch(bench, f"batch {size}", requests, size, variants, load.minutes, found, place.console)
    title = f"Operating point ({load.method.method}, {place.loaded.quantization})"
    return Outcome(
        (load_table(found, title), choices_table(found)), tuple(load_verdicts(found)), asdict(found)
    )


def load_table(found: Found, title: str) -> Table:
    """Each variant at each batch."""
    table = Table("workload", "drafts", "runs", "tokens/pass", "tokens/s", "x of none", title=title)
    for workload, samples in found.samples.items():
        for name, runs in samples.items():
            table.add_row(
                workload,
                name,
                str(len(runs)),
                f"{found.total(workload, name).per_pass:.2f}",
                rates(found, workload, name).text(),
                median_of(found.ratios(workload, name, NONE.name)).text(digits=3),
            )
        table.add_section()
    return table


def choices_table(found: Found) -> Table:
    """What the adaptive one chose, and where its time went."""
    columns = (
        "workload",
        "decodes by drafts verified",
        "without drafts because of",
        "drafting",
        "beside best",
    )
    table = Table(*columns, title="What the adaptive one chose")
    for workload in found.samples:
        total = found.total(workload, ADAPTIVE)
        shares = "  ".join(
            f"{drafts}: {count / total.passes:.0%}" for drafts, count in enumerate(total.chosen) if count
        )
        off = "  ".join(f"{reason} {count / total.passes:.1%}" for reason, count in total.off if count)
        beside = "  ".join(
            f"{ratio.value:.3f} of {other}" for other, ratio in judged(found, workload).items()
        )
        table.add_row(workload, shares, off, f"{total.draft_s / total.seconds:.1%}", beside)
    return table
