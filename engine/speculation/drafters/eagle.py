"""EAGLE-1 and EAGLE-2 heads: the same weights, drafting chains or, where `eagle_topk` is above 1, trees."""

from __future__ import annotations

from engine.models.config import ModelConfig
from engine.speculation.base import Drafter, Target
from engine.speculation.config import SpeculationConfig
from engine.speculation.eagle.config import Generation
from engine.speculation.eagle.loading import create_eagle, eagle_layers

READS_FEATURES = True


def layers(config: SpeculationConfig, model: ModelConfig) -> int:
    """Layers of the head. Raises as `create`."""
    return eagle_layers(config, model, Generation.ONE)


def create(config: SpeculationConfig, target: Target) -> Drafter:
    """The drafter; ValueError for settings out of bounds, ModelError for a head that cannot be used."""
    return create_eagle(config, target, Generation.ONE)
