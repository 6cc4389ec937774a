from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from engine.speculation.stats import DraftBatches, SpeculationStats
from worker.speculation_metrics import speculation_metrics

STATS = SpeculationStats(
    passes=10,
    drafted_tokens=30,
    reached_by_position=(8, 7, 7),
    accepted_by_position=(6, 3, 1),
    passes_by_accepted=(4, 3, 2, 1),
    batches=(DraftBatches(1, 2, 2, 8), DraftBatches(4, 2, 8, 22)),
    draft_s=0.5,
    pass_s=2.0,
    off=(("batch", 3), ("probe", 1)),
)


class _Fixed(Collector):
    def collect(self) -> object:
        return speculation_metrics(("worker",), ("decode-0",), STATS)


def test_what_a_scrape_sees() -> None:
    registry = CollectorRegistry()
    registry.register(_Fixed())
    values = {
        (
            sample.name.removeprefix("kvrelay_worker_"),
            *(v for k, v in sorted(sample.labels.items()) if k != "worker"),
        ): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }
    assert values["draft_tokens_total",] == 30
    assert values["accepted_draft_tokens_total",] == 10
    assert values["draft_seconds_total",] == 0.5
    assert values["verify_seconds_total",] == 2.0
    assert values["drafts_by_position_total", "verified", "2"] == 7
    assert values["drafts_by_position_total", "accepted", "2"] == 3
    # Tokens per pass are the histogram's sum by its count.
    assert values["tokens_per_pass_sum",] == 20
    assert values["tokens_per_pass_count",] == 10
    assert [values["tokens_per_pass_bucket", f"{tokens}.0"] for tokens in (1, 2, 3, 4)] == [4, 7, 9, 10]
    assert values["asked_drafts_total", "4"] / values["decoded_sequences_total", "4"] == 22 / 8
    assert values["decode_passes_total", "1"] == 2
    assert values["without_drafts_total", "batch"] == 3
