"""Which rule a request gets: the coupled one where the client chose the seed, which then tells the tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.sampling.sampler import Sampled
from engine.speculation.verification.base import Chooser, Place


class ChooserBySeed:
    """Implements `engine.speculation.verification.base.Chooser` with two others.

    Args:
        seeded: for requests with a seed of their own.
        unseeded: for those without.
    """

    def __init__(self, seeded: Chooser, unseeded: Chooser) -> None:
        self.lossless = seeded.lossless and unseeded.lossless
        self._choosers = {True: seeded, False: unseeded}

    def choose(self, logits: torch.Tensor, places: Sequence[Place]) -> Sampled:
        """See `engine.speculation.verification.base.Chooser`."""
        sampled = Sampled([0] * len(places))
        for own_seed, chooser in self._choosers.items():
            names = [index for index, place in enumerate(places) if place.rules.params.own_seed is own_seed]
            if len(names) == len(places):
                return chooser.choose(logits, places)
            if names:
                sampled.put(names, chooser.choose(logits, [places[index] for index in names]))
        return sampled
