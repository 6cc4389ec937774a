"""The part `rules`: how often drafts are accepted at temperature 1, by the rule of verification."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.progress import track
from rich.table import Table

from benchmarks.speculating.bench import Answer, Bench, answers
from benchmarks.speculating.found import mean_ratio
from benchmarks.speculating.intervals import Floats, Interval, of_sums
from benchmarks.speculating.part import Outcome, Place
from benchmarks.speculating.variants import COMPARED, RULES, Variant, lookups, shaped, under_rule
from benchmarks.speculating.workloads import requests_of
from engine.api import EngineRequest

_BATCH = 8

Answers = dict[str, dict[str, list[Answer]]]
"""By rule and set, in the order of the prompts."""


def measure_rules(
    bench: Bench, variant: Variant, requests: dict[str, list[EngineRequest]], batch: int
) -> Answers:
    """One way to draft under both rules."""
    found: Answers = {}
    for rule in RULES:
        ruled = under_rule(variant, rule)
        found[rule] = {name: answers(bench.engine(ruled), own, batch) for name, own in requests.items()}
        bench.close(ruled)
    return found


def run_rules(place: Place, few: int) -> Outcome:
    """Measures; there is no bar. The ratio is what the default for requests without a seed rests on."""
    requests = {
        name: requests_of(prompts, place.tokens, 1.0, 1000 * number, name)
        for number, (name, prompts) in enumerate(place.few(few).items())
    }
    variants = lookups()
    if place.head is not None:
        variants = [*(shaped(place.head, shape) for shape in COMPARED), *variants]
    bench = Bench(place.loaded, _BATCH, [request for own in requests.values() for request in own])
    found = {
        variant.name: measure_rules(bench, variant, requests, _BATCH)
        for variant in track(variants, "rules", console=place.console)
    }
    samples = {
        name: {
            rule: {kind: [(own.tokens, own.passes) for own in each] for kind, each in sets.items()}
            for rule, sets in by_rule.items()
        }
        for name, by_rule in found.items()
    }
    title = f"Tokens a pass at temperature 1, by rule ({place.loaded.quantization})"
    return Outcome((rules_table(found, title),), (), samples)


def rules_table(found: dict[str, Answers], title: str) -> Table:
    """Both rules on all sets, and how many times as much the first gives on average."""
    table = Table("drafts", "rule", *next(iter(found.values()))[RULES[0]], "average", title=title)
    for name, by_rule in found.items():
        for rule in RULES:
            sets = by_rule[rule]
            figures = [_per_pass([own]) for own in sets.values()]
            table.add_row(name, rule, *(each.text() for each in (*figures, _per_pass(list(sets.values())))))
        ratio = compared(list(by_rule[RULES[0]].values()), list(by_rule[RULES[1]].values()))
        table.add_row("", f"{RULES[0]} / {RULES[1]}", *[""] * len(by_rule[RULES[0]]), ratio.text())
        table.add_section()
    return table


def compared(ours: Sequence[Sequence[Answer]], theirs: Sequence[Sequence[Answer]]) -> Interval:
    """Tokens a pass of one rule, averaged over sets, times those of the other; prompts are paired."""
    strata = [
        np.array([(a.tokens, a.passes, b.tokens, b.passes) for a, b in zip(left, right, strict=True)], float)
        for left, right in zip(ours, theirs, strict=True)
    ]
    return of_sums(strata, _times)


def _per_pass(sets: Sequence[Sequence[Answer]]) -> Interval:
    strata = [np.array([(own.tokens, own.passes) for own in each], float) for each in sets]
    return of_sums(strata, mean_ratio)


def _times(sums: Floats) -> Floats:
    ratio: Floats = mean_ratio(sums[..., :2]) / mean_ratio(sums[..., 2:])
    return ratio
