"""Two-model drafting: a small model of the same vocabulary drafts chains."""

from __future__ import annotations

from engine.speculation.base import Drafter, Target
from engine.speculation.config import SpeculationConfig
from engine.speculation.two_model.loading import create_two_model


def create(config: SpeculationConfig, target: Target) -> Drafter:
    """The drafter; ValueError for settings out of bounds, ModelError for a model that cannot be used."""
    return create_two_model(config, target)
