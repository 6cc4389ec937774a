"""The part `methods`: every way to draft at batch 1, and what it must reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from rich.console import Console
from rich.progress import Progress

from benchmarks.engine_bars import Verdict
from benchmarks.speculating.bench import Bench, Stream
from benchmarks.speculating.found import Found, positions_table, run_together, speed_table
from benchmarks.speculating.intervals import Interval
from benchmarks.speculating.part import Outcome, Place
from benchmarks.speculating.stretch import Stretch
from benchmarks.speculating.variants import AFTER_LOOKUP, NONE, Variant, lookups, ways_to_draft
from benchmarks.speculating.workloads import requests_of
from engine.api import EngineRequest
from engine.quantization.registry import PLAIN

KINDS = {"greedy": 0.0, "T=1": 1.0}
LEAST_PER_PASS = {"greedy": 2.5, "T=1": 1.9}
LEAST_HEAD_SPEED = 1.5
LEAST_LOOKUP_SPEED = 1.3
_TURN = 16
"""Tokens of one variant before the next one's turn: about a quarter of a second."""


def measure_each(
    bench: Bench,
    workloads: Mapping[str, Sequence[EngineRequest]],
    variants: Sequence[Variant],
    console: Console,
    turn: int = _TURN,
) -> Found:
    """All variants on each request, one request at a time; the shortest comes before and does not count.

    A run is one request.
    """
    found = Found()
    total = sum(len(requests) for requests in workloads.values())
    shortest = min(
        (request for requests in workloads.values() for request in requests),
        key=lambda request: len(request.prompt_token_ids),
    )
    with Progress(console=console) as progress:
        task = progress.add_task("warm-up", total=total)
        # Of a tenant of its own, for some drafters learn answers.
        _run(bench, replace(shortest, cache_salt="warm-up"), variants, turn, 0)
        for name, requests in workloads.items():
            progress.update(task, description=name)
            for number, request in enumerate(requests):
                found.take(name, _run(bench, request, variants, turn, number))
                progress.advance(task)
    return found


def _run(
    bench: Bench, request: EngineRequest, variants: Sequence[Variant], turn: int, first: int
) -> dict[str, Stretch]:
    streams = {variant.name: Stream(bench.engine(variant), [request], 1) for variant in variants}
    return run_together(streams, turn, first)


def run_methods(place: Place, rounds: int, names: Sequence[str] = ()) -> Outcome:
    """Measures and judges; of the ways to draft those that are named, all where none is."""
    precision = place.loaded.quantization
    workloads: dict[str, list[EngineRequest]] = {}
    for kind, temperature in KINDS.items():
        for first_seed, (name, prompts) in enumerate(place.sets.items()):
            workload = f"{name} {kind}"
            # A tenant of its own each time: no drafter knows the answers of another workload or round.
            workloads[workload] = [
                request
                for number in range(rounds)
                for request in requests_of(
                    prompts, place.tokens, temperature, 1000 * first_seed, f"{workload} {number}"
                )
            ]
    bench = Bench(place.loaded, 1, ())
    ways = [way for way in ways_to_draft(place.head) if not names or way.name in names]
    found = measure_each(bench, workloads, [NONE, *ways], place.console)
    return Outcome(
        (speed_table(found, f"Methods at batch 1 ({precision})"), positions_table(found)),
        tuple(method_verdicts(found, precision)),
        asdict(found),
    )


def method_verdicts(found: Found, precision: str) -> list[Verdict]:
    """What methods must reach in fp32; other precisions are only shown."""
    if precision != PLAIN:
        return []
    without = {variant.name for variant in (NONE, *lookups())}
    names = {name for samples in found.samples.values() for name in samples} - without
    # What the text itself gives is not the head's doing.
    heads = sorted(name for name in names if not name.endswith(AFTER_LOOKUP))
    verdicts = []
    for kind, least in LEAST_PER_PASS.items():
        workloads = [name for name in found.samples if name.endswith(kind)]
        statement = f"a head, {kind}: at least {least} tokens a pass on average"
        figures = {head: found.per_pass(workloads, head) for head in heads if workloads}
        verdicts.append(_best(statement, figures, least))
    greedy = [name for name in found.samples if name.endswith("greedy")]
    statement = f"a head, greedy, fp32, batch 1: at least {LEAST_HEAD_SPEED}x tokens/s"
    figures = {head: found.speed(greedy, head) for head in heads if greedy}
    verdicts.append(_best(statement, figures, LEAST_HEAD_SPEED))
    statement = f"prompt lookup, summarising, batch 1: at least {LEAST_LOOKUP_SPEED}x tokens/s"
    asked = ["summarize greedy"] if "ngram" in found.samples.get("summarize greedy", {}) else []
    figures = {"ngram": found.speed(asked, "ngram")} if asked else {}
    verdicts.append(_best(statement, figures, LEAST_LOOKUP_SPEED))
    return verdicts


def _best(statement: str, figures: Mapping[str, Interval], least: float) -> Verdict:
    """Judged on the variant that is best at just that."""
    if not figures:
        return Verdict(statement, "not measured", None)
    best = max(figures, key=lambda name: figures[name].value)
    return Verdict(statement, f"{figures[best].text()} ({best})", figures[best].value >= least)
