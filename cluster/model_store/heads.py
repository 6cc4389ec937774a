"""What the project knows of speculating for models that it can fetch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cluster.model_store.store import DEMO, ModelEntry
from engine.speculation.config import SpeculationConfig

_FOLDER = Path(__file__).parent / "heads"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one model.

    Attributes:
        head: folder of its draft head.
        head_method: that the head is for.
        best: how it is served fastest, see docs/benchmarks.md: what `auto` takes.
    """

    head: Path
    head_method: str
    best: SpeculationConfig


_DEMO_HEAD = _FOLDER / "smollm2-135m-eagle3"
_KNOWN = {
    DEMO: Known(
        head=_DEMO_HEAD,
        head_method="eagle3",
        # What the text itself says goes on for long; the head ends its chains by itself.
        best=SpeculationConfig("eagle3", _DEMO_HEAD, lookup_first=True, num_speculative_tokens=8),
    )
}


def known(model: ModelEntry) -> Known | None:
    """What is known of a model; None for models of others."""
    return _KNOWN.get(model.name)
