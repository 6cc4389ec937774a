"""How often drafts are right that their drafter was so sure of: what a drafter says, set right by experience.

A head's own probabilities tell much about each single draft, far more than how many of a request's drafts
were right before. But heads are sure of themselves: most of all where answers are drawn, for then the
likeliest token need not come. So what they say is brought to what came of it (Zadrozny and Elkan, 2001,
binning), greedy answers and drawn ones apart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.96)
"""Between the bins: narrow where most drafts are."""
_PRIOR_TESTS = 8.0
_MOST_TESTS = 400.0
"""No more than so many are remembered of a bin."""
_LEAST_TESTS = 4.0
"""Of a bin that has fewer nothing is known."""
_DECAY = 0.998
"""With each step: what was not verified for long is not known any more."""


class ConfidenceCalibration:
    """Of one drafter's drafts, by what it says of each: that all up to it are right."""

    def __init__(self) -> None:
        bounds = (0.0, *_EDGES, 1.0)
        self._middles = [(low + high) / 2 for low, high in pairwise(bounds)]
        self._tests = [0.0] * len(self._middles)
        self._said = [0.0] * len(self._middles)
        self._right = [0.0] * len(self._middles)
        # The curve through the bins, until something new is seen.
        self._curve: tuple[Floats, Floats] | None = None

    def chances(self, confidence: Sequence[float]) -> Floats:
        """[len(confidence)], probabilities, never rising.

        Drafts of which nothing is known are as likely as the next surer one: trying is what it is learnt by.

        Args:
            confidence: of drafts of one sequence, the surest first.
        """
        if self._curve is None:
            self._curve = self._points()
        chances = np.interp(confidence, *self._curve)
        unknown = np.array(self._tests)[np.searchsorted(_EDGES, confidence, side="right")] < _LEAST_TESTS
        falling: Floats = np.minimum.accumulate(np.where(unknown, 1.0, chances))
        return falling

    def observe(self, confidence: float, right: bool) -> None:
        """A draft was verified."""
        place = bisect_right(_EDGES, confidence)
        kept = min(1.0, _MOST_TESTS / (self._tests[place] + 1))
        self._tests[place] = kept * self._tests[place] + 1
        self._said[place] = kept * self._said[place] + confidence
        self._right[place] = kept * self._right[place] + right
        self._curve = None

    def step(self) -> None:
        """Time passes."""
        for column in (self._tests, self._said, self._right):
            column[:] = [_DECAY * value for value in column]
        self._curve = None

    def _points(self) -> tuple[Floats, Floats]:
        """What is said, and what to expect, rising both."""
        tests = np.array(self._tests) + _PRIOR_TESTS
        prior = _PRIOR_TESTS * np.array(self._middles)
        said = (np.array(self._said) + prior) / tests
        right = (np.array(self._right) + prior) / tests
        ends = np.pad(said, 1, constant_values=(0.0, 1.0)), np.pad(right, 1, mode="edge")
        ends[1][0] = 0.0
        return ends[0], np.maximum.accumulate(ends[1])
