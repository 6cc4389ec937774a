"""The ways to speculate that are measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.speculation.config import NO_SPECULATION, SpeculationConfig


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to speculate.

    Attributes:
        name: as tables show it.
        speculation: settings of the engine.
        drafts: always so many; None lets the engine choose where `speculation.adaptive` says so, and asks for
            all that the method allows otherwise.
    """

    name: str
    speculation: SpeculationConfig = NO_SPECULATION
    drafts: int | None = None


NONE = Variant("none")

# Depth, children of a node, nodes, and the least probability of a draft. A short chain costs little, a great
# tree shows what a head knows; likely drafts alone are what is served.
_LIKELY = SpeculationConfig().draft_p_min
SHAPES = {
    "chain of 2": (2, 1, 3, 0.0),
    "chain of 5": (5, 1, 6, 0.0),
    "tree of 16": (6, 4, 16, 0.0),
    "tree of 60": (6, 10, 60, 0.0),
    "likely chain": (6, 1, 7, _LIKELY),
    "likely tree": (6, 4, 16, _LIKELY),
}
AFTER_LOOKUP = " after lookup"
"""Ends the name of a head that the text itself goes before."""
# Text that repeats itself goes on doing so for long.
_LOOKED_UP = 8
# By which the two rules are compared.
COMPARED = ("chain of 5", "tree of 16")
RULES = ("coupled", "standard")
# Methods that know a tenant's past answers.
LEARN_ANSWERS = ("suffix",)


def shaped(head: SpeculationConfig, shape: str) -> Variant:
    """A head that always drafts in one of `SHAPES`."""
    depth, topk, nodes, least = SHAPES[shape]
    speculation = replace(
        head,
        num_speculative_tokens=depth,
        eagle_topk=topk,
        num_draft_tokens=nodes,
        draft_p_min=least,
        adaptive=False,
    )
    return Variant(f"{head.method} {shape}", speculation)


def looking_up_first(head: SpeculationConfig) -> Variant:
    """A head that drafts likely chains where the text itself has nothing to say."""
    likely = shaped(head, "likely chain").speculation
    speculation = replace(likely, lookup_first=True, num_speculative_tokens=_LOOKED_UP)
    return Variant(f"{head.method}{AFTER_LOOKUP}", speculation)


def lookups() -> list[Variant]:
    """Methods that need no model, at their full length."""
    ngram = SpeculationConfig(method="ngram", num_speculative_tokens=6, adaptive=False)
    suffix = SpeculationConfig(method="suffix", eagle_topk=4, num_draft_tokens=12, adaptive=False)
    return [Variant("ngram", ngram), Variant("suffix", suffix)]


def ways_to_draft(head: SpeculationConfig | None) -> list[Variant]:
    """Methods at fixed sizes: what they give must not depend on what pays here."""
    if head is None:
        return lookups()
    return [*lookups(), *(shaped(head, shape) for shape in SHAPES), looking_up_first(head)]


def under_rule(variant: Variant, rule: str) -> Variant:
    """The same with another rule of verification, named after it."""
    return Variant(f"{variant.name}, {rule}", replace(variant.speculation, verification=rule))


def operating_points(method: SpeculationConfig, most: int) -> list[Variant]:
    """The adaptive one and each fixed number of drafts, 0 left out: none stands beside them."""
    chain = replace(method, num_speculative_tokens=most)
    return [Variant(ADAPTIVE, chain), *(Variant(f"k = {k}", chain, drafts=k) for k in range(1, most + 1))]


ADAPTIVE = "adaptive"
