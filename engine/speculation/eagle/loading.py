"""Loads an EAGLE head for a model."""

from __future__ import annotations

from pathlib import Path

from engine.models.base import DraftedLM
from engine.models.config import ModelConfig
from engine.quantization.registry import PLAIN
from engine.quantization.registry import quantization as quantization_of
from engine.speculation.base import Drafter, Target
from engine.speculation.config import COUPLED, SpeculationConfig
from engine.speculation.draft_weights import draft_quantization
from engine.speculation.eagle.config import Generation, read_eagle_config
from engine.speculation.eagle.drafter import DraftShape, EagleDrafter
from engine.speculation.eagle.head import EagleHead
from engine.speculation.eagle.weights import load_weights
from engine.speculation.settings import check_share, check_tree, max_drafts


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


def eagle_layers(config: SpeculationConfig, model: ModelConfig, generation: Generation) -> int:
    """Layers that the pool needs behind the model's own. Raises as `create_eagle`."""
    return read_eagle_config(_folder(config), generation, model).layers.num_layers


def create_eagle(config: SpeculationConfig, target: Target, generation: Generation) -> Drafter:
    """Loads a head and makes its drafter.

    Raises:
        ValueError: settings out of bounds, or none that names the head's folder.
        ModelError: as `load_head`.
    """
    check_tree(config)
    check_share("draft_p_min", config.draft_p_min)
    settings = target.settings
    head = load_head(
        _folder(config),
        generation,
        target.model,
        quantization=draft_quantization(settings, target.model),
        attention_backend=settings.attention_backend,
        context_length=target.max_model_len,
    )
    shape = DraftShape(
        depth=config.num_speculative_tokens,
        width=config.eagle_topk,
        size=max_drafts(config),
        coupled=config.verification == COUPLED,
        least=config.draft_p_min,
    )
    return EagleDrafter(head, target.kv, shape)


def _folder(config: SpeculationConfig) -> Path:
    if config.model is None:
        raise ValueError(f"model must name the folder of a head for method {config.method!r}")
    return config.model
