"""Draft heads that come with the project, for models that it can fetch."""

from __future__ import annotations

from pathlib import Path

from cluster.model_store.store import DEMO, ModelEntry
from engine.speculation.config import SpeculationConfig

_FOLDER = Path(__file__).parent / "heads"
_HEADS = {DEMO: SpeculationConfig(method="eagle3", model=_FOLDER / "smollm2-135m-eagle3")}


def packaged_head(model: ModelEntry) -> SpeculationConfig | None:
    """The head for a model and how it drafts best; None where there is none."""
    config = _HEADS.get(model.name)
    return config if config is not None and config.model is not None and config.model.is_dir() else None
