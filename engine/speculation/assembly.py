"""Makes what an engine needs to speculate, as its settings say."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.config import EngineConfig
from engine.grammar.base import GrammarCompiler
from engine.models.base import DraftedLM
from engine.ops.cpu.build import DEFAULT_CACHE
from engine.request_limits import max_model_len
from engine.speculation.base import Drafter, Target
from engine.speculation.calibration import calibrate
from engine.speculation.choice import Drafters
from engine.speculation.operating_point import AdaptivePlanner
from engine.speculation.planner import DraftPlanner, FixedPlanner
from engine.speculation.registry import create_drafter, methods_without_model
from engine.speculation.speculator import Speculator


def make_speculator(
    model: DraftedLM,
    kv: torch.Tensor,
    settings: EngineConfig,
    grammars: GrammarCompiler | None = None,
) -> Speculator | None:
    """The speculator of an engine; None where neither its settings nor any request can ask for drafts.

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
    drafters = make_drafters(target)
    return Speculator(drafters, _planner(drafters.max_drafts, target)) if drafters.max_drafts else None


def make_drafters(target: Target) -> Drafters:
    """The deployment's drafter, and those that requests may choose. Raises as `make_speculator`."""
    config = target.settings.speculation
    own = create_drafter(config, target)
    others: dict[str, Drafter] = {}
    for method in methods_without_model() if config.per_request else ():
        # A tree's shape was chosen for the deployment's method.
        chains = replace(config, method=method, model=None, eagle_topk=1, lookup_first=False)
        drafter = create_drafter(chains, target) if method != config.method else None
        if drafter is not None:
            others[method] = drafter
    return Drafters(
        own, config.method, others, branching=config.eagle_topk > 1, may_decline=config.per_request
    )


def _planner(most: int, target: Target) -> DraftPlanner:
    settings = target.settings
    speculation = settings.speculation
    if not speculation.adaptive:
        return FixedPlanner(most)
    described = f"{settings.ops} {settings.quantization} {settings.attention_backend} {settings.threads}"
    points = calibrate(
        target.model,
        target.kv,
        described,
        settings.kernel_cache or DEFAULT_CACHE,
        most=settings.max_batched_tokens,
    )
    return AdaptivePlanner(points, most, branching=speculation.eagle_topk > 1)
