"""How many drafts of a request will be right: the seam, and the model of drafts that follow one another.

Leviathan et al. (2023) take a draft to be right with one probability a, which makes (1 - a^(k + 1)) / (1 - a)
tokens of k drafts. Here each position has its own, for drafters get worse the further they look ahead;
another one in a run of right drafts, for what is easy to guess comes in runs; and each request shifts all of
them, for texts differ more than positions do.
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
_RUN_EXPONENT = 0.7
"""How much the odds gain by a run rises with its length: as was measured, see docs/benchmarks.md."""
_RUN_GAIN = 0.01
_NEARLY_NONE = 1e-3
_CERTAIN = 0.01
"""No probability is taken to be nearer to 0 or 1."""


class AcceptanceModel(Protocol):
    """Learns from outcomes what more drafts are worth. Requests are named by a number of their own."""

    def gains(self, requests: Sequence[int], most: int, *, sigmas: float = 0.0) -> Floats:
        """[len(requests), most], right drafts that each further one adds on average, where there are always
        so many; rows never rise.

        With `sigmas` so many standard errors more than is to be expected: how many it may well be.
        """
        ...

    def observe(self, request: int, drafted: int, accepted: int, asked: int) -> None:
        """A pass found `accepted` of a request's `drafted` drafts, at least 1, right.

        `asked` is for how many its drafter was asked where it had no more than these, else `drafted`.
        """
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
        run: drafts of the last pass, if all of them were right; else 0.
    """

    tests: float = 0.0
    hits: float = 0.0
    expected: float = 0.0
    run: int = 0

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
    """Tests and right drafts by position, of passes whose requests were alike before.

    Args:
        most: positions.
        others: of passes that say what to expect of these before they were seen; None for no such.
    """

    def __init__(self, most: int, others: _Positions | None = None) -> None:
        # Lists: of the few numbers that a step touches each is looked at alone.
        self._tests = [0.0] * most
        self._hits = [0.0] * most
        self._missing = [0.0] * most
        self._others = others

    @property
    def rates(self) -> list[float]:
        """By position: how often a draft was right where all before it were."""
        rates: list[float] = []
        before = FIRST_GUESS if self._others is None else self._others.rates[0]
        for tests, hits in zip(self._tests, self._hits, strict=True):
            before = (hits + _PRIOR_TESTS * before) / (tests + _PRIOR_TESTS)
            rates.append(before)
        return rates

    def log_odds(self, most: int, sigmas: float) -> Floats:
        """[most], of the rates, and so many standard errors more."""
        rates, tests = np.array(self.rates[:most]), np.array(self._tests[:most]) + _PRIOR_TESTS
        return _log_odds(rates + sigmas * np.sqrt(rates * (1 - rates) / tests))

    def missing(self, most: int) -> Floats:
        """[most], of drafts that were not right: how many were not there."""
        misses = np.array(self._tests[:most]) - np.array(self._hits[:most])
        share: Floats = np.array(self._missing[:most]) / (misses + _PRIOR_TESTS)
        return share

    def take(self, tests: int, hits: int, drafted: int) -> None:
        for place in range(tests):
            kept = min(1.0, _MOST_WEIGHT / (self._tests[place] + 1))
            self._tests[place] = kept * self._tests[place] + 1
            self._hits[place] = kept * self._hits[place] + (place < hits)
            self._missing[place] = kept * self._missing[place] + (place >= drafted)

    def step(self) -> None:
        for place, tests in enumerate(self._tests):
            if tests > _LEAST_WEIGHT:
                self._tests[place] *= _DEPLOYMENT_DECAY
                self._hits[place] *= _DEPLOYMENT_DECAY
                self._missing[place] *= _DEPLOYMENT_DECAY


class ChainAcceptance:
    """Drafts one behind the other: one is right only where all before it are. As `AcceptanceModel`.

    What is easy to guess comes in runs. So where all of the last drafts were right, the next ones are right
    more often, and the more so the more these were; where one was wrong, it does not matter how many there
    had been. Both are learnt apart. A drafter that had no more to say was not wrong. Asking for more uses up
    more of a run in one pass, and leaves less of it to the next: what k drafts bring if k are always asked
    for follows from how often a pass then begins in a run, which is a Markov chain of two states.

    Args:
        most: drafts of the longest chain.
    """

    def __init__(self, most: int) -> None:
        self._anew = _Positions(most)
        self._running = _Positions(most, self._anew)
        # Right drafts before passes that begin in a run, on average.
        self._run = 1.0
        self._own: dict[int, _Own] = {}
        self._spread = Spread(_FIRST_SPREAD, _LEAST_SPREAD, _SPREAD_PRIOR)

    def gains(self, requests: Sequence[int], most: int, *, sigmas: float = 0.0) -> Floats:
        """As `AcceptanceModel.gains`."""
        none = _Own()
        spread = self._spread.variance
        shifts = np.array([self._own.get(request, none).shift(spread) for request in requests])[:, None]
        odds = self._anew.log_odds(most, sigmas)
        # [most, most]: by the drafts there are, and by position. Longer runs than were seen are no surer.
        lengths = np.minimum(np.arange(1, most + 1) / self._run, 1.0)[:, None] ** _RUN_EXPONENT
        odds_running = odds + lengths * np.maximum(self._running.log_odds(most, sigmas) - odds, 0.0)
        # [requests, most] and [requests, most, most]: all drafts up to there are right.
        anew, running = _all_right(odds + shifts), _all_right(odds_running + shifts[:, :, None])
        # All that are there are right: a pass that ends for want of drafts leaves its run to the next one.
        begins = anew + _for_want(anew, self._anew.missing(most)).cumsum(axis=1)
        wanting = np.tril(_for_want(running, self._running.missing(most)))
        goes_on = np.diagonal(running, axis1=1, axis2=2) + wanting.sum(axis=2)
        share = begins / (1 - goes_on + begins)
        right_anew, right_running = anew.cumsum(axis=1), np.tril(running).sum(axis=2)
        right = right_anew + share * (right_running - right_anew)
        added = np.minimum.accumulate(np.diff(right, axis=1, prepend=0.0), axis=1)
        gains: Floats = np.maximum(added, _NEARLY_NONE)
        return gains

    def observe(self, request: int, drafted: int, accepted: int, asked: int) -> None:
        """As `AcceptanceModel.observe`. Drafts behind the first wrong one say nothing."""
        own = self._own.setdefault(request, _Own())
        positions = self._running if own.run else self._anew
        rates = positions.rates
        tests = min(accepted + 1, asked)
        self._spread.take(own.hits - own.expected, own.tests, accepted - sum(rates[:tests]), tests)
        for place in range(tests):
            own.take(place < accepted, rates[place])
        positions.take(tests, accepted, drafted)
        if own.run:
            self._run += _RUN_GAIN * (own.run - self._run)
        own.run = accepted if accepted == drafted else 0

    def step(self) -> None:
        """As `AcceptanceModel.step`."""
        self._anew.step()
        self._running.step()

    def forget(self, request: int) -> None:
        """As `AcceptanceModel.forget`."""
        self._own.pop(request, None)


def _log_odds_of(probability: float) -> float:
    inside = min(max(probability, _CERTAIN), 1 - _CERTAIN)
    return math.log(inside / (1 - inside))


def _log_odds(probabilities: Floats) -> Floats:
    inside = np.clip(probabilities, _CERTAIN, 1 - _CERTAIN)
    return np.log(inside / (1 - inside))


def _for_want(right: Floats, missing: Floats) -> Floats:
    """Chances that all before each position, the last axis, are right and there is none there."""
    over: Floats = -np.diff(right, axis=-1, prepend=1.0) * missing
    return over


def _all_right(log_odds: Floats) -> Floats:
    """Chances that all up to each position, the last axis, are right."""
    each: Floats = 1 / (1 + np.exp(-log_odds))
    return np.cumprod(each, axis=-1, dtype=np.float64)
