"""Medusa heads, drafting chains or, where `eagle_topk` is above 1, a static tree."""

from __future__ import annotations

from engine.speculation.base import Drafter, Target
from engine.speculation.config import SpeculationConfig
from engine.speculation.medusa.loading import create_medusa

READS_FEATURES = True


def create(config: SpeculationConfig, target: Target) -> Drafter:
    """The drafter; ValueError for settings out of bounds, ModelError for heads that cannot be used."""
    return create_medusa(config, target)
