"""How many drafts of a request will be right: the seam, and the model of drafts that follow one another.

Leviathan et al. (2023) take a draft to be right with one probability a, which makes (1 - a^(k + 1)) / (1 - a)
tokens of k drafts. Here each position has its own, for drafters get worse the further they look ahead; and
each request shifts all of them, for texts differ more than positions do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.speculation.spread import Spread

Floats = npt.NDArray[np.float64]

FIRST_GUESS = 0.7
"""Probability that a draft is right, before any was checked: rather too high, for trying corrects it."""

_DEPLOYMENT_DECAY = 0.998
"""Of what all requests have shown, with each step: about 500 steps are remembered."""
_LEAST_WEIGHT = 16.0
"""Tests that are remembered however long ago they were: what is known never fades to a first guess."""
_PRIOR_TESTS = 8.0
_MOST_WEIGHT = 400.0
"""And no more than so many tests: large batches make many in little time."""
_OWN_DECAY = 1 - 1 / 20
"""Of what one request has shown, with each of its tests."""
_FIRST_SPREAD, _LEAST_SPREAD = 0.02, 0.002
_SPREAD_PRIOR = 2000.0
_RUN_EXPONENT, _RUN_GAIN = 0.7, 0.01
_NEARLY_NONE = 1e-3
_CERTAIN = 0.01
"""No probability is taken to be nearer to 0 or 1."""


class AcceptanceModel(Protocol):
    """Learns from outcomes what more drafts are worth. Requests are named by a number of their own."""

    def gains(self, requests: Sequence[int], most: int, *, sigmas: float = 0.0) -> Floats:
        """[len(requests), most], right drafts that each further one adds on average; rows never rise.

        With `sigmas` so many standard errors more than is to be expected: how many it may well be.
        """
        ...

    def observe(self, request: int, drafted: int, accepted: int) -> None:
        """A pass found `accepted` of a request's `drafted` drafts, at least 1, right."""
        ...

    def step(self) -> None:
        """Time passes: what was seen counts a little less."""
        ...

    def forget(self, request: int) -> None:
        """The request has ended; it may be unknown."""
        ...


@dataclass(slots=True)
class _Own:
    """Tests of one request's drafts, the latest counting most.

    Attributes:
        tests: drafts that were checked.
        hits: of these, right ones.
        expected: right ones that the deployment's means let expect.
        ran: whether the last drafts were all right.
    """

    tests: float = 0.0
    hits: float = 0.0
    expected: float = 0.0
    ran: int = 0

    def take(self, hit: bool, expected: float) -> None:
        self.tests = self.tests * _OWN_DECAY + 1
        self.hits = self.hits * _OWN_DECAY + hit
        self.expected = self.expected * _OWN_DECAY + expected

    def shift(self, spread: float) -> float:
        """By how much its log odds differ from the deployment's.

        Args:
            spread: variance of the requests' own means, which says how much one's tests are to be believed.
        """
        if not self.tests:
            return 0.0
        mean = self.expected / self.tests
        prior_tests = max(0.0, mean * (1 - mean) / spread - 1)
        own = (prior_tests * mean + self.hits) / (prior_tests + self.tests)
        return _log_odds_of(own) - _log_odds_of(mean)


class _Positions:
    """Tests and right drafts by position, of all requests whose last drafts came out alike."""

    def __init__(self, most: int) -> None:
        # Lists: of the few numbers that a step touches each is looked at alone.
        self.tests = [0.0] * most
        self.hits = [0.0] * most
        self._rates: list[float] = []

    def rates(self) -> list[float]:
        """How often a draft was right where all before it were."""
        if not self._rates:
            before = FIRST_GUESS
            for tests, hits in zip(self.tests, self.hits, strict=True):
                before = (hits + _PRIOR_TESTS * before) / (tests + _PRIOR_TESTS)
                self._rates.append(before)
        return self._rates

    def log_odds(self, most: int, sigmas: float) -> Floats:
        rates, tests = np.array(self.rates()[:most]), np.array(self.tests[:most]) + _PRIOR_TESTS
        return _log_odds(rates + sigmas * np.sqrt(rates * (1 - rates) / tests))

    def take(self, tests: int, hits: int) -> None:
        for place in range(tests):
            kept = min(1.0, _MOST_WEIGHT / (self.tests[place] + 1))
            self.tests[place] = kept * self.tests[place] + 1
            self.hits[place] = kept * self.hits[place] + (place < hits)
        self._rates = []

    def step(self) -> None:
        for place, tests in enumerate(self.tests):
            if tests > _LEAST_WEIGHT:
                self.tests[place] *= _DEPLOYMENT_DECAY
                self.hits[place] *= _DEPLOYMENT_DECAY
        self._rates = []


class ChainAcceptance:
    """Drafts one behind the other: one is right only where all before it are. As `AcceptanceModel`.

    Args:
        most: drafts of the longest chain.
    """

    def __init__(self, most: int) -> None:
        self._positions = (_Positions(most), _Positions(most))
        self._own: dict[int, _Own] = {}
        self._run = 1.0
        self._spread = Spread(_FIRST_SPREAD, _LEAST_SPREAD, _SPREAD_PRIOR)

    def gains(self, requests: Sequence[int], most: int, *, sigmas: float = 0.0) -> Floats:
        """As `AcceptanceModel.gains`."""
        none = _Own()
        spread = self._spread.variance
        shifts = np.array([self._own.get(request, none).shift(spread) for request in requests])
        stopped, ran = (positions.log_odds(most, sigmas) for positions in self._positions)
        # [most, most]: odds by the drafts that are always asked for, and by position.
        by_length = np.minimum(np.arange(1, most + 1) / self._run, 1.0) ** _RUN_EXPONENT
        onwards = stopped + by_length[:, None] * np.maximum(ran - stopped, 0.0)
        # [requests, lengths, positions]: all up to there are right, after a stop and in a run.
        anew = _all_right(stopped + shifts[:, None])[:, None, :]
        further = _all_right(onwards[None] + shifts[:, None, None])
        lengths = np.tril(np.ones((most, most)))
        right_anew, right_further = (anew * lengths).sum(axis=2), (further * lengths).sum(axis=2)
        begin = anew[:, 0, :]
        stay = np.diagonal(further, axis1=1, axis2=2)
        running = begin / (1 - stay + begin)
        right = right_anew + running * (right_further - right_anew)
        gains: Floats = np.minimum.accumulate(np.diff(right, axis=1, prepend=0.0), axis=1)
        return np.maximum(gains, _NEARLY_NONE)

    def observe(self, request: int, drafted: int, accepted: int) -> None:
        """As `AcceptanceModel.observe`. Drafts behind the first wrong one say nothing."""
        own = self._own.setdefault(request, _Own())
        positions = self._positions[own.ran > 0]
        rates = positions.rates()
        tests = min(accepted + 1, drafted)
        self._spread.take(own.hits - own.expected, own.tests, accepted - sum(rates[:tests]), tests)
        for place in range(tests):
            own.take(place < accepted, rates[place])
        positions.take(tests, accepted)
        if own.ran:
            self._run += _RUN_GAIN * (own.ran - self._run)
        own.ran = accepted if accepted == drafted else 0

    def step(self) -> None:
        """As `AcceptanceModel.step`."""
        for positions in self._positions:
            positions.step()

    def forget(self, request: int) -> None:
        """As `AcceptanceModel.forget`."""
        self._own.pop(request, None)


def _log_odds_of(probability: float) -> float:
    inside = min(max(probability, _CERTAIN), 1 - _CERTAIN)
    return math.log(inside / (1 - inside))


def _log_odds(probabilities: Floats) -> Floats:
    inside = np.clip(probabilities, _CERTAIN, 1 - _CERTAIN)
    return np.log(inside / (1 - inside))


def _all_right(log_odds: Floats) -> Floats:
    right: Floats = np.cumprod(1 / (1 + np.exp(-log_odds)), axis=-1)
    return right
