"""Loads an EAGLE head for a model."""

from __future__ import annotations

from pathlib import Path

from engine.models.base import DraftedLM
from engine.quantization.registry import PLAIN
from engine.quantization.registry import quantization as quantization_of
from engine.speculation.eagle.config import Generation, read_eagle_config
from engine.speculation.eagle.head import EagleHead
from engine.speculation.eagle.weights import load_weights


def load_head(
    folder: Path,
    generation: Generation,
    model: DraftedLM,
    *,
    quantization: str = PLAIN,
    attention_backend: str = "auto",
    context_length: int = 0,
) -> EagleHead:
    """Loads a head: dtype, device and operations are the model's.

    Args:
        folder: of the head, in one of the published layouts.
        generation: that the folder must hold.
        model: that it drafts for.
        quantization: name in `engine.quantization.registry`: how its linear layers' weights are stored.
        attention_backend: file name in `engine/attention/`, or "auto".
        context_length: most tokens of a context; 0 is the model's own limit.

    Raises:
        ModelError: no such head, or one that is broken, not supported, or made for another model.
        ValueError: no such quantization or attention backend.
    """
    store = quantization_of(quantization)
    config = read_eagle_config(folder, generation, model.config, context_length)
    shared = model.shared()
    weights = load_weights(folder, config, shared, store)
    return EagleHead(config, weights, shared, model.config, attention_backend)
