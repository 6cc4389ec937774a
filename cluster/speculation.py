"""From the spec's section on speculation to what engines are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cluster.model_store.heads import known
from cluster.model_store.store import ModelEntry
from cluster.speculation_spec import AUTO, NONE, SpeculationSpec
from engine.speculation.config import NO_SPECULATION, SpeculationConfig
from engine.speculation.medusa.choices import Choice

# Settings that are left to the engine's defaults, or a packaged head's, where the spec does not say.
_OPEN = (
    "num_speculative_tokens",
    "eagle_topk",
    "num_draft_tokens",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "lookup_first",
    "draft_p_min",
)


def plan_speculation(spec: SpeculationSpec, model: ModelEntry) -> SpeculationConfig:
    """Settings of every engine of a deployment.

    Args:
        spec: the deployment's section.
        model: that it serves: what is known of it decides what `auto` is, and which head is taken where none
            is named.
    """
    own = known(model)
    planned = NO_SPECULATION
    if spec.method == AUTO:
        planned = own.best if own is not None else NO_SPECULATION
    elif spec.method != NONE:
        # Ray starts workers in a folder of its own.
        folder = Path(spec.model).expanduser().resolve() if spec.model else None
        if folder is None and own is not None and spec.method == own.head_method:
            folder = own.head
        planned = SpeculationConfig(method=spec.method, model=folder)
    open_ones = {name: getattr(spec, name) for name in _OPEN}
    given = _bounds_of(spec.medusa_choices) | {
        name: value for name, value in open_ones.items() if value is not None
    }
    return replace(
        planned,
        medusa_choices=spec.medusa_choices,
        verification=spec.verification,
        adaptive=spec.adaptive,
        per_request=spec.per_request,
        prefill_history=spec.prefill_history,
        **given,
    )


def of_prefill(planned: SpeculationConfig) -> SpeculationConfig:
    """Settings of those engines that only prefill."""
    return (
        planned if planned.prefill_history else replace(planned, method=NONE, model=None, lookup_first=False)
    )


def _bounds_of(choices: Sequence[Choice]) -> dict[str, int]:
    """The bounds that a tree of these choices just keeps; none where nothing is chosen."""
    if not choices:
        return {}
    return {
        "num_speculative_tokens": max(map(len, choices)),
        "eagle_topk": 1 + max(map(max, choices)),
        "num_draft_tokens": 1 + len(choices),
    }
