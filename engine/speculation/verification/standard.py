"""The standard rule: a draft is accepted with min(1, p / q), and what replaces a refused one is drawn from
what p has more than q.

p is the target's processed distribution: after masks, bias, penalties, temperature and truncation. q is what
the draft was drawn from; for a draft that was chosen, not drawn, all of it lies on that draft. Leviathan et
al., 2023, "Fast inference from transformers via speculative decoding", and Chen et al., 2023, "Accelerating
large language model decoding with speculative sampling". Siblings are tried one after the other, each against
what the refused ones before it have left of p: Miao et al., 2024, "SpecInfer".

Tokens have the target's distribution, but depend on the drafts: another drafter makes others of the same
seed. It is exact only where what was drawn did not decide which drafts of that drawing are verified.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.sampling.choice import Drawer
from engine.sampling.draws import key_tensor, uniforms
from engine.sampling.keys import DrawKey, Purpose, draw_key
from engine.sampling.logprobs import token_logprobs
from engine.sampling.sampler import Sampled, Sampler
from engine.speculation.verification.base import Chooser, Place
from engine.speculation.verification.rows import rows_of


class _Standard:
    """Implements `engine.speculation.verification.base.Chooser`.

    A greedy row's p lies on one token, so its drafts are accepted where they are that token: what the sampler
    gives tells it all.
    """

    lossless = True

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._drawer = Drawer()

    def choose(self, logits: torch.Tensor, places: Sequence[Place]) -> Sampled:
        """See `engine.speculation.verification.base.Chooser`."""
        sampled = Sampled([0] * len(places))
        for greedy in (True, False):
            names = [index for index, place in enumerate(places) if place.rules.greedy is greedy]
            if names:
                own = [places[index] for index in names]
                rows = rows_of(logits, own)
                part = (
                    self._sampler.sample(rows, [place.rules for place in own])
                    if greedy
                    else self._draw(rows, own)
                )
                sampled.put(names, part)
        return sampled

    def _draw(self, logits: torch.Tensor, places: Sequence[Place]) -> Sampled:
        """Chooses for places of which none is greedy, whose logits are [len(places), vocab]."""
        told = self._sampler.distributions(logits, [place.rules for place in places])
        sampled = Sampled([0] * len(places), not_numbers=told.not_numbers, stuck=told.stuck)
        without = {*told.not_numbers, *told.stuck}
        sound = [row for row in range(len(places)) if row not in without]
        refused: list[int] = []
        for row, draws in zip(sound, _accepting_draws([places[row] for row in sound]), strict=True):
            accepted = _accept(told.probabilities[row], places[row], draws)
            if accepted is None:
                refused.append(row)
            else:
                sampled.token_ids[row] = accepted
        keys = [_key(places[row], Purpose.RESIDUAL) for row in refused]
        drawn = self._drawer.draw_from(told.probabilities[refused], keys)
        for row, token_id in zip(refused, drawn, strict=True):
            sampled.token_ids[row] = token_id
        reported = [row for row in sound if places[row].rules.params.logprobs is not None]
        if reported:
            reports = token_logprobs(
                logits[reported],
                [sampled.token_ids[row] for row in reported],
                [places[row].rules.params.logprobs or 0 for row in reported],
            )
            sampled.logprobs = dict(zip(reported, reports, strict=True))
        return sampled


def _accept(weights: torch.Tensor, place: Place, draws: Sequence[float]) -> int | None:
    """The first draft that is accepted at a place, None where none is.

    Args:
        weights: [vocab] fp32, p. Becomes what the refused drafts leave of it, which need not add up to 1.
        place: where.
        draws: uniform in (0, 1), one for each of the place's drafts.
    """
    mass = 1.0
    for (token_id, proposed), draw in zip(place.drafts, draws, strict=True):
        likelihood = 1.0 if proposed is None else float(proposed[token_id])
        if draw * likelihood * mass < float(weights[token_id]):
            return token_id
        if proposed is None:
            weights[token_id] = 0.0
        else:
            weights.sub_(proposed, alpha=mass).clamp_(min=0.0)
        mass = float(weights.sum())
        if mass <= 0.0:
            # p and q that differ by rounding alone: the draft was as good as accepted.
            return token_id
    return None


def _accepting_draws(places: Sequence[Place]) -> list[list[float]]:
    """Uniform draws in (0, 1) for the drafts of places, each keyed by its draft's token."""
    tokens = [[token_id for token_id, _ in place.drafts] for place in places]
    most = max(map(len, tokens), default=0)
    if not most:
        return [[] for _ in places]
    padded = torch.tensor([own + [0] * (most - len(own)) for own in tokens])
    keys = key_tensor([_key(place, Purpose.ACCEPT) for place in places], padded.device)
    drawn = uniforms(keys, padded).tolist()
    return [draws[: len(own)] for draws, own in zip(drawn, tokens, strict=True)]


def _key(place: Place, purpose: Purpose) -> DrawKey:
    rules = place.rules
    return draw_key(rules.params.seed, rules.params.choice, rules.position, purpose)


def create(sampler: Sampler) -> Chooser:
    """The rule, with the sampler's distributions."""
    return _Standard(sampler)
