"""Coupled verification: a draft is accepted where it is the token that the target draws itself.

The target's token at a position is drawn with noise that depends on seed, choice, position and token id
alone. Drafts do not enter into it, so a request gets the same tokens with any drafter and with none, and they
have the target's distribution trivially. A drafter that adds the same noise to its own scores is accepted
more often than one that draws apart: the two argmax agree wherever the distributions are close (Gumbel
coupling, as in Daliri et al., 2025, "Coupling without communication and drafter-invariant speculative
decoding").
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.sampling.sampler import Sampled, Sampler
from engine.speculation.verification.base import Chooser, Place
from engine.speculation.verification.rows import rows_of


class _Coupled:
    """Implements `engine.speculation.verification.base.Chooser`."""

    lossless = True

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def choose(self, logits: torch.Tensor, places: Sequence[Place]) -> Sampled:
        """See `engine.speculation.verification.base.Chooser`."""
        return self._sampler.sample(rows_of(logits, places), [place.rules for place in places])


def create(sampler: Sampler) -> Chooser:
    """The rule, drawing with `sampler`."""
    return _Coupled(sampler)
