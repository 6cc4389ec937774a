"""Makes what an engine needs to speculate, as its settings say."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.grammar.base import GrammarCompiler
from engine.models.base import DraftedLM
from engine.ops.cpu.build import DEFAULT_CACHE
from engine.request_limits import max_model_len
from engine.speculation.base import Drafter, Target
from engine.speculation.calibration import calibrate
from engine.speculation.operating_point import AdaptivePlanner
from engine.speculation.planner import DraftPlanner, FixedPlanner
from engine.speculation.registry import create_drafter
from engine.speculation.speculator import Speculator


def make_speculator(
    model: DraftedLM,
    kv: torch.Tensor,
    settings: EngineConfig,
    grammars: GrammarCompiler | None = None,
) -> Speculator | None:
    """The speculator of an engine; None where its settings ask for none.

    Args:
        model: the target.
        kv: its pool, with the layers behind its own that `engine.speculation.registry.draft_layers` asks for.
        settings: of the engine.
        grammars: the engine's.

    Raises:
        ValueError: a setting that cannot be honoured, by name.
        ModelError: the draft model or head is missing, broken, or not made for the target.
    """
    longest = max_model_len(model.config, settings, kv.shape[0] - 1)
    target = Target(model, kv, settings, longest, grammars)
    drafter = create_drafter(settings.speculation, target)
    return None if drafter is None else Speculator(drafter, _planner(drafter, target))


def _planner(drafter: Drafter, target: Target) -> DraftPlanner:
    settings = target.settings
    speculation = settings.speculation
    if not speculation.adaptive:
        return FixedPlanner(drafter.max_drafts)
    described = f"{settings.ops} {settings.quantization} {settings.attention_backend} {settings.threads}"
    points = calibrate(
        target.model,
        target.kv,
        described,
        settings.kernel_cache or DEFAULT_CACHE,
        most=settings.max_batched_tokens,
    )
    return AdaptivePlanner(points, drafter.max_drafts, branching=speculation.eagle_topk > 1)
