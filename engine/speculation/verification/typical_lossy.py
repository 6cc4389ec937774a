"""Medusa's typical acceptance: drafts that are likely enough are taken, whether drawn or not. LOSSY.

A draft is accepted where the target's processed distribution p gives it more than min(epsilon, delta *
exp(-H(p))), H being p's entropy: the less sure the target is, the less is asked of a draft. Cai et al., 2024,
"Medusa: simple LLM inference acceleration framework with multiple decoding heads". Answers are then no draws
from p: they lean to what the drafter says. Whoever wants the target's own distribution wants another rule.

Greedy rows are exact all the same: their drafts are accepted where they are the best token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from engine.sampling.logprobs import token_logprobs
from engine.sampling.sampler import Sampled, Sampler
from engine.speculation.verification.base import Chooser, Place
from engine.speculation.verification.rows import rows_of

EPSILON = 0.09
"""What is asked of a draft at most: a probability."""

DELTA = 0.3
"""Share of exp(-H) that is asked."""


class _Typical:
    """Implements `engine.speculation.verification.base.Chooser`."""

    lossless = False

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def choose(self, logits: torch.Tensor, places: Sequence[Place]) -> Sampled:
        """See `engine.speculation.verification.base.Chooser`. Where no draft is likely, one is drawn."""
        rows = rows_of(logits, places)
        sampled = self._sampler.sample(rows, [place.rules for place in places])
        without = {*sampled.not_numbers, *sampled.stuck}
        drafted = [
            index
            for index, place in enumerate(places)
            if index not in without and not place.rules.greedy and place.drafts
        ]
        if not drafted:
            return sampled
        told = self._sampler.distributions(rows[drafted], [places[index].rules for index in drafted])
        accepted: list[int] = []
        for index, probabilities in zip(drafted, told.probabilities, strict=True):
            token_id = _likely(probabilities, places[index])
            if token_id is not None:
                sampled.token_ids[index] = token_id
                accepted.append(index)
        reported = [index for index in accepted if places[index].rules.params.logprobs is not None]
        if reported:
            reports = token_logprobs(
                rows[reported],
                [sampled.token_ids[index] for index in reported],
                [places[index].rules.params.logprobs or 0 for index in reported],
            )
            sampled.logprobs.update(zip(reported, reports, strict=True))
        return sampled


def _likely(probabilities: torch.Tensor, place: Place) -> int | None:
    """The first of a place's drafts that is likely enough, [vocab] given; None where none is."""
    entropy = float(torch.special.entr(probabilities).sum())
    least = min(EPSILON, DELTA * math.exp(-entropy))
    likely = (token_id for token_id, _ in place.drafts if float(probabilities[token_id]) > least)
    return next(likely, None)


def create(sampler: Sampler) -> Chooser:
    """The rule, with the sampler's distributions."""
    return _Typical(sampler)
