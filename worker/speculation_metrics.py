"""What a speculating engine counts, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from engine.speculation.stats import SpeculationStats


def speculation_metrics(
    names: tuple[str, ...], values: tuple[str, ...], stats: SpeculationStats
) -> Iterator[Metric]:
    """One family for each count.

    Args:
        names: labels of all metrics of the worker.
        values: theirs.
        stats: totals of its engine.
    """
    for name, text, total in (
        ("draft_tokens", "Drafts verified.", stats.drafted_tokens),
        ("accepted_draft_tokens", "Of these, right ones.", stats.accepted_tokens),
        ("draft_seconds", "Time of the drafter.", stats.draft_s),
        ("verify_seconds", "Time of the passes that decode, verification included.", stats.pass_s),
    ):
        counter = CounterMetricFamily(f"kvrelay_worker_{name}", text, labels=names)
        counter.add_metric(values, total)
        yield counter
    positions = CounterMetricFamily(
        "kvrelay_worker_drafts_by_position",
        "Drafts on the longest paths by position, from 1: verified ones, and right ones.",
        labels=(*names, "position", "outcome"),
    )
    pairs = zip(stats.reached_by_position, stats.accepted_by_position, strict=True)
    for position, (reached, accepted) in enumerate(pairs, 1):
        positions.add_metric((*values, str(position), "verified"), reached)
        positions.add_metric((*values, str(position), "accepted"), accepted)
    yield positions
    per_pass = HistogramMetricFamily(
        "kvrelay_worker_tokens_per_pass", "Tokens of one sequence in a decoding pass.", labels=names
    )
    buckets = [(f"{tokens}.0", count) for tokens, count in enumerate(accumulate(stats.passes_by_accepted), 1)]
    per_pass.add_metric(
        values, [*buckets, ("+Inf", stats.passes)], sum_value=stats.passes + stats.accepted_tokens
    )
    yield per_pass
    for name, text, counts in (
        (
            "decode_passes",
            "Passes that decode, by size of the batch: from so many to less than twice.",
            [(batch.decodes, batch.passes) for batch in stats.batches],
        ),
        (
            "decoded_sequences",
            "Sequences in them.",
            [(batch.decodes, batch.sequences) for batch in stats.batches],
        ),
        (
            "asked_drafts",
            "Drafts asked for these.",
            [(batch.decodes, batch.asked) for batch in stats.batches],
        ),
    ):
        family = CounterMetricFamily(f"kvrelay_worker_{name}", text, labels=(*names, "batch"))
        for decodes, count in counts:
            family.add_metric((*values, str(decodes)), count)
        yield family
    off = CounterMetricFamily(
        "kvrelay_worker_without_drafts",
        "Decodes that were to have no drafts: slower for the batch, wrong too often for the request, ending, "
        "or to measure a step without.",
        labels=(*names, "reason"),
    )
    for reason, count in stats.off:
        off.add_metric((*values, reason), count)
    yield off
