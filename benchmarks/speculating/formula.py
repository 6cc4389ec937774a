"""The part `formula`: E = (1 - a^(k + 1)) / (1 - a) beside measured tokens of a round, for chains of k.

Leviathan et al. (2023) take every draft to be right with the same probability a, whatever was right before.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.progress import track
from rich.table import Table

from benchmarks.environments import Recipe, provide
from benchmarks.peers.process import ROOT
from benchmarks.speculating.bench import Bench, answers
from benchmarks.speculating.found import mean_ratio
from benchmarks.speculating.intervals import Interval, of_sums
from benchmarks.speculating.part import Outcome, Place
from benchmarks.speculating.variants import LEARN_ANSWERS, Variant
from benchmarks.speculating.workloads import requests_of
from engine.api import EngineRequest
from engine.speculation.config import RequestSpeculation, SpeculationConfig

LENGTHS = tuple(range(1, 9))
_BATCH = 8
_PLOTS = Recipe("plots", (("install", "matplotlib>=3.10,<4"),))


def expected_tokens(a: float, drafts: int) -> float:
    """Tokens of a round by the formula."""
    return sum(a**place for place in range(drafts + 1))


@dataclass(frozen=True, slots=True)
class Rounds:
    """Passes with chains of at most `drafts` drafts.

    Attributes:
        drafts: k.
        by_request: of each request, its passes by how many drafts were right.
    """

    drafts: int
    by_request: tuple[Counter[int], ...]

    @property
    def passes(self) -> Counter[int]:
        """All passes by how many drafts were right."""
        return sum(self.by_request, Counter[int]())

    @property
    def right(self) -> int:
        """Drafts that were right."""
        return sum(accepted * count for accepted, count in self.passes.items())

    @property
    def tested(self) -> int:
        """Drafts behind right ones alone, the first that was wrong or missing among them."""
        return sum(min(accepted + 1, self.drafts) * count for accepted, count in self.passes.items())

    @property
    def tokens(self) -> Interval:
        """Of a round: right drafts and the token that every pass gives. Requests are what varies."""
        rows = [
            (sum((accepted + 1) * count for accepted, count in own.items()), own.total())
            for own in self.by_request
            if own
        ]
        return of_sums([np.array(rows, dtype=float)], mean_ratio)

    def by_position(self) -> list[float]:
        """How often the draft at a position was right where all before it were."""
        passes = self.passes
        reached = [
            sum(count for accepted, count in passes.items() if accepted >= place)
            for place in range(self.drafts + 1)
        ]
        return [after / before if before else 0.0 for before, after in pairwise(reached)]


def acceptance(rounds: Sequence[Rounds]) -> float:
    """The one a that explains all rounds best (greatest likelihood): right drafts of those tested."""
    return sum(each.right for each in rounds) / max(1, sum(each.tested for each in rounds))


def measure_rounds(
    place: Place, config: SpeculationConfig, requests: Sequence[EngineRequest]
) -> list[Rounds]:
    """Chains of one method, by their length."""
    longest = replace(config, num_speculative_tokens=max(LENGTHS), eagle_topk=1, adaptive=False)
    engine = Bench(place.loaded, _BATCH, requests).engine(Variant(config.method, longest))
    rounds = []
    for drafts in track(LENGTHS, config.method, console=place.console):
        asked = [
            replace(
                request,
                # What learns answers must not know those of the length before.
                cache_salt=str(drafts) if config.method in LEARN_ANSWERS else "",
                speculation=RequestSpeculation(num_speculative_tokens=drafts),
            )
            for request in requests
        ]
        found = answers(engine, asked, _BATCH)
        rounds.append(Rounds(drafts, tuple(answer.by_accepted for answer in found)))
    return rounds


def run_formula(place: Place, few: int, plot: Path | None) -> Outcome:
    """Measures; draws where a file is named. Raises InstallError where what draws cannot be had."""
    prompts = [ids for own in place.few(few).values() for ids in own]
    requests = requests_of(prompts, place.tokens)
    methods = [SpeculationConfig(method="ngram"), SpeculationConfig(method="suffix")]
    if place.head is not None:
        methods.insert(0, place.head)
    found = {config.method: measure_rounds(place, config, requests) for config in methods}
    if plot is not None:
        draw(found, plot, place)
    samples = {
        method: [[dict(own) for own in each.by_request] for each in rounds]
        for method, rounds in found.items()
    }
    return Outcome((formula_table(found), chains_table(found)), (), samples)


def formula_table(found: Mapping[str, Sequence[Rounds]]) -> Table:
    """Measured and computed, side by side."""
    table = Table("drafts", "a", *(f"k = {k}" for k in LENGTHS), title="Tokens of a round: measured, formula")
    for method, rounds in found.items():
        a = acceptance(rounds)
        table.add_row(method, "", *(each.tokens.text() for each in rounds))
        table.add_row("formula", f"{a:.3f}", *(f"{expected_tokens(a, each.drafts):.2f}" for each in rounds))
        table.add_section()
    return table


def chains_table(found: Mapping[str, Sequence[Rounds]]) -> Table:
    """Where the formula's assumption does not hold."""
    table = Table("drafts", *(f"{place}" for place in LENGTHS), title="Right by position, behind right ones")
    for method, rounds in found.items():
        table.add_row(method, *(f"{share:.2f}" for share in rounds[-1].by_position()))
    return table


def draw(found: Mapping[str, Sequence[Rounds]], plot: Path, place: Place) -> None:
    """Draws it with matplotlib, which is installed for it alone. Raises InstallError."""
    environment = provide(_PLOTS, place.cache, place.console)
    data = {
        method: {
            "lengths": [each.drafts for each in rounds],
            "measured": [each.tokens.value for each in rounds],
            "low": [each.tokens.low if each.tokens.is_known else each.tokens.value for each in rounds],
            "high": [each.tokens.high if each.tokens.is_known else each.tokens.value for each in rounds],
            "a": acceptance(rounds),
        }
        for method, rounds in found.items()
    }
    module = "benchmarks.speculating.plot"
    environment.run(
        [environment.python, "-m", module, json.dumps(data), plot.absolute()], {"PYTHONPATH": str(ROOT)}
    )
    place.console.print(f"drawn: {plot}")
