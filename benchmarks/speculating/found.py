"""What was measured, in paired runs, and tables of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from rich.table import Table

from benchmarks.bars import Spread
from benchmarks.speculating.bench import Stream
from benchmarks.speculating.intervals import Floats, Interval, of_sums
from benchmarks.speculating.stretch import Stretch
from benchmarks.speculating.variants import NONE


@dataclass(slots=True)
class Found:
    """Runs by workload, then by variant. Runs of one number are of the same requests, interleaved."""

    samples: dict[str, dict[str, list[Stretch]]] = field(default_factory=dict)

    def take(self, workload: str, stretches: Mapping[str, Stretch]) -> None:
        """Notes one run of some variants."""
        samples = self.samples.setdefault(workload, {})
        for name, stretch in stretches.items():
            samples.setdefault(name, []).append(stretch)

    def total(self, workload: str, name: str) -> Stretch:
        """All runs together."""
        return sum(self.samples[workload][name], Stretch())

    def ratios(self, workload: str, name: str, other: str) -> list[float]:
        """How many times faster one was than another, run by run, as long as both were run."""
        samples = self.samples[workload]
        pairs = zip(samples[name], samples[other], strict=False)
        return [own.rate / peer.rate for own, peer in pairs if own.tokens and peer.tokens]

    def per_pass(self, workloads: Sequence[str], name: str) -> Interval:
        """Tokens a pass on average over workloads."""
        strata = [
            np.array([(run.tokens, run.passes) for run in self.samples[workload][name]], dtype=float)
            for workload in workloads
        ]
        return of_sums(strata, mean_ratio)

    def speed(self, workloads: Sequence[str], name: str, other: str = NONE.name) -> Interval:
        """Tokens a second of all workloads together, times those of another variant."""
        strata = []
        for workload in workloads:
            samples = self.samples[workload]
            pairs = zip(samples[name], samples[other], strict=True)
            strata.append(
                np.array([(a.tokens, a.seconds, b.tokens, b.seconds) for a, b in pairs], dtype=float)
            )
        return of_sums(strata, _times_as_fast)


def mean_ratio(sums: Floats) -> Floats:
    """[..., strata, (a, b)] -> [...], a / b on average over strata."""
    ratio: Floats = (sums[..., 0] / sums[..., 1]).mean(axis=-1)
    return ratio


def _times_as_fast(sums: Floats) -> Floats:
    tokens, seconds, other_tokens, other_seconds = np.moveaxis(sums.sum(axis=-2), -1, 0)
    ratio: Floats = (tokens / seconds) / (other_tokens / other_seconds)
    return ratio


def run_together(streams: Mapping[str, Stream], tokens: int, first: int) -> dict[str, Stretch]:
    """Runs streams to their ends, in turns of so many tokens, so that all of them meet the same disturbance.

    Args:
        streams: by variant, of the same requests.
        tokens: of a turn.
        first: the place of the stream that comes first; who does changes from turn to turn.
    """
    names = list(streams)
    totals = dict.fromkeys(names, Stretch())
    while not all(stream.is_over for stream in streams.values()):
        for place in range(len(names)):
            name = names[(place + first) % len(names)]
            totals[name] += streams[name].advance(tokens)
        first += 1
    return totals


def speed_table(found: Found, title: str) -> Table:
    """Each variant on each workload."""
    columns = ("workload", "drafts", "tokens/pass", "tokens/s", "x of none", "drafts right", "drafting")
    table = Table(*columns, title=title)
    for workload, samples in found.samples.items():
        for name in samples:
            total = found.total(workload, name)
            right = f"{sum(total.accepted) / total.drafted:.0%}" if total.drafted else "-"
            table.add_row(
                workload,
                name,
                found.per_pass([workload], name).text(),
                f"{total.rate:.1f}",
                found.speed([workload], name).text(),
                right,
                f"{total.draft_s / total.seconds:.0%}",
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


def rates(found: Found, workload: str, name: str) -> Spread:
    """Tokens a second, run by run."""
    return Spread.of([run.rate for run in found.samples[workload][name] if run.tokens])
