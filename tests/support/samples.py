"""Prometheus metrics as a scraper reads them."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

_WHO = frozenset({"worker", "role"})


def samples(url: str) -> dict[str, float]:
    """Every sample by name and label values, as `kvrelay_worker_blocks/free`, without worker and role."""
    text = httpx.get(url, timeout=30.0).raise_for_status().text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = (value for name, value in sample.labels.items() if name not in _WHO)
            found["/".join((sample.name, *labels))] = sample.value
    return found


def moved(before: Mapping[str, float], after: Mapping[str, float]) -> set[str]:
    """Names of those that have grown."""
    return {name for name, value in after.items() if value > before.get(name, 0.0)}
