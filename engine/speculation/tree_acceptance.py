"""How many drafts of a tree will be right, by its size: a curve learnt where it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.speculation.acceptance import FIRST_GUESS, Floats
from engine.speculation.spread import Spread

_FIRST_EXPONENT = 0.5
"""Before any tree was checked one of n drafts is taken to hold `FIRST_GUESS` * n^0.5 right ones."""

_DEPLOYMENT_DECAY = 0.998
_LEAST_WEIGHT, _MOST_WEIGHT = 16.0, 200.0
_PRIOR_TREES = 4.0
_OWN_DECAY = 1 - 1 / 16
_FIRST_SPREAD, _LEAST_SPREAD, _MOST_SPREAD = 0.1, 0.01, 1.0
_SPREAD_PRIOR = 500.0
_NEARLY_NONE = 1e-3


def tree_sizes(most: int) -> tuple[int, ...]:
    """Sizes that are worth telling apart, `most` the last: a tree of one node more is hardly another."""
    sizes = [1]
    while sizes[-1] < most:
        sizes.append(min(most, sizes[-1] + max(1, sizes[-1] // 2)))
    return tuple(sizes)


@dataclass(slots=True)
class _Own:
    """Right drafts of one request, and those that the deployment's means let expect, the latest first."""

    hits: float = 0.0
    expected: float = 0.0

    def take(self, accepted: int, expected: float) -> None:
        self.hits = self.hits * _OWN_DECAY + accepted
        self.expected = self.expected * _OWN_DECAY + expected

    def factor(self, spread: float) -> float:
        """How many times more of its drafts are right; `spread` is the variance of that between requests."""
        return (1 / spread + self.hits) / (1 / spread + self.expected)


class TreeAcceptance:
    """Trees, of which one path may be right. As `engine.speculation.acceptance.AcceptanceModel`.

    What a tree of n drafts holds is learnt by size, in proportion to a curve that rises ever less; between
    sizes that were tried the proportion changes evenly, beyond them it stays. Requests differ by a factor.

    Args:
        most: drafts of the largest tree.
    """

    def __init__(self, most: int) -> None:
        self._sizes = np.array(tree_sizes(most), dtype=np.float64)
        self._trees = np.zeros(len(self._sizes))
        self._hits = np.zeros(len(self._sizes))
        self._own: dict[int, _Own] = {}
        self._spread = Spread(_FIRST_SPREAD, _LEAST_SPREAD, _SPREAD_PRIOR)
        self._known: Floats | None = None

    def gains(self, requests: Sequence[int], most: int, *, sigmas: float = 0.0) -> Floats:
        """As `AcceptanceModel.gains`."""
        none = _Own()
        spread = min(self._spread.variance, _MOST_SPREAD)
        factors = np.array([self._own.get(request, none).factor(spread) for request in requests])
        return factors[:, None] * self._marginal(sigmas)[None, :most]

    def observe(self, request: int, drafted: int, accepted: int, asked: int) -> None:
        """As `AcceptanceModel.observe`: a tree is worth what it was asked to be."""
        own = self._own.setdefault(request, _Own())
        expected = float(self._marginal()[:asked].sum())
        self._spread.take(own.hits - own.expected, own.expected, accepted - expected, expected)
        own.take(accepted, expected)
        place = int(np.abs(np.log(self._sizes / asked)).argmin())
        # A size next to it: brought to that by the curve.
        share = (self._sizes[place] / asked) ** _FIRST_EXPONENT
        kept = min(1.0, _MOST_WEIGHT / (self._trees[place] + 1))
        self._trees[place] = kept * self._trees[place] + 1
        self._hits[place] = kept * self._hits[place] + accepted * share
        self._known = None

    def step(self) -> None:
        """As `AcceptanceModel.step`."""
        decay = np.where(self._trees > _LEAST_WEIGHT, _DEPLOYMENT_DECAY, 1.0)
        self._trees *= decay
        self._hits *= decay
        self._known = None

    def forget(self, request: int) -> None:
        """As `AcceptanceModel.forget`."""
        self._own.pop(request, None)

    def _marginal(self, sigmas: float = 0.0) -> Floats:
        """[most], what each further draft adds; never rises."""
        if sigmas:
            return self._slopes(sigmas)
        if self._known is None:
            self._known = self._slopes(0.0)
        return self._known

    def _slopes(self, sigmas: float) -> Floats:
        curve = FIRST_GUESS * self._sizes**_FIRST_EXPONENT
        tried = self._trees > 0
        if tried.any():
            # The prior of a size is what the others say, so that a few trees do not bend the curve.
            prior = _PRIOR_TREES * FIRST_GUESS
            overall = (self._hits.sum() + prior) / ((self._trees * curve).sum() + prior)
            trees = self._trees + _PRIOR_TREES
            ratios = (self._hits + _PRIOR_TREES * overall * curve) / (trees * curve)
            ratios = np.interp(np.log(self._sizes), np.log(self._sizes[tried]), ratios[tried])
            # The number of right drafts varies about as much as its mean.
            curve = curve * (ratios + sigmas * np.sqrt(ratios / (trees * curve)))
        steps = np.diff(self._sizes, prepend=0.0)
        slopes = _falling(np.diff(curve, prepend=0.0) / steps, steps)
        return np.repeat(np.maximum(slopes, _NEARLY_NONE), steps.astype(np.int64))


def _falling(slopes: Floats, widths: Floats) -> Floats:
    """The nearest slopes that never rise, in least squares: what rises is pooled (Ayer et al., 1955)."""
    pools: list[tuple[float, float, int]] = []
    for slope, width in zip(slopes.tolist(), widths.tolist(), strict=True):
        mean, weight, count = slope, width, 1
        while pools and pools[-1][0] < mean:
            before, weight_before, count_before = pools.pop()
            mean = (mean * weight + before * weight_before) / (weight + weight_before)
            weight += weight_before
            count += count_before
        pools.append((mean, weight, count))
    return np.repeat([mean for mean, _, _ in pools], [count for _, _, count in pools])
