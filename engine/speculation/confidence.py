"""How often drafts are right that their drafter was so sure of: what a drafter says, set right by experience.

A head's own probabilities tell much about each single draft, far more than how many of a request's drafts
were right before. But heads may be too sure of themselves: most of all where answers are drawn, for then the
likeliest token need not come. So what they say is brought to what came of it (Zadrozny and Elkan, 2001,
binning), greedy answers and drawn ones apart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.96)
"""Between the bins: narrow where most drafts are."""
_MIDDLES = tuple((low + high) / 2 for low, high in pairwise((0.0, *_EDGES, 1.0)))
_PRIOR_TESTS = 8.0
_MOST_TESTS = 400.0
"""No more than so many are remembered of a bin."""
_LEAST_TESTS = 4.0
"""Of a bin that has fewer nothing is known."""
_DECAY = 0.998
"""With each step: what was not verified for long is not known any more."""


class ConfidenceCalibration:
    """Of one drafter's drafts, by what it says of each: that it is right, and all before it.

    In plain Python: a step asks for a few dozen numbers, sequence by sequence, for which arrays take longer.
    """

    def __init__(self) -> None:
        self._tests = [0.0] * len(_MIDDLES)
        self._said = [0.0] * len(_MIDDLES)
        self._right = [0.0] * len(_MIDDLES)
        # What is said, rising, and what is to be expected then, until something new is seen.
        self._curve: tuple[list[float], list[float]] | None = None

    def chances(self, confidence: Sequence[float]) -> list[float]:
        """Probabilities that they are right, never rising.

        Drafts of which nothing is known are as likely as the next surer one, and certain where there is none:
        trying is what it is learnt by.

        Args:
            confidence: of drafts of one sequence, the surest first.
        """
        if self._curve is None:
            self._curve = self._points()
        said, right = self._curve
        chances: list[float] = []
        chance = 1.0
        for sure in confidence:
            if self._tests[bisect_right(_EDGES, sure)] >= _LEAST_TESTS:
                # The first point is at 0, the last one at 1.
                place = min(bisect_right(said, sure), len(said) - 1)
                share = (sure - said[place - 1]) / (said[place] - said[place - 1])
                chance = min(chance, right[place - 1] + share * (right[place] - right[place - 1]))
            chances.append(chance)
        return chances

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

    def _points(self) -> tuple[list[float], list[float]]:
        said, right = [0.0], [0.0]
        for middle, tests, told, came in zip(_MIDDLES, self._tests, self._said, self._right, strict=True):
            if tests >= _LEAST_TESTS:
                said.append((told + _PRIOR_TESTS * middle) / (tests + _PRIOR_TESTS))
                right.append((came + _PRIOR_TESTS * middle) / (tests + _PRIOR_TESTS))
        return [*said, 1.0], [*right, right[-1]]
