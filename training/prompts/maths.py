"""Sums, word problems, equations and geometry."""

from __future__ import annotations

from random import Random

from training.prompts.filling import fill, templates

_ENDINGS = (
    "",
    "",
    "",
    " Show your work.",
    " Explain step by step.",
    " Let's think step by step.",
    " Answer briefly.",
)


def problem(rng: Random) -> str:
    """One problem."""
    return fill(rng.choice(templates("maths")), rng) + rng.choice(_ENDINGS)
