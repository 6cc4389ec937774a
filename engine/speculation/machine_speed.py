"""How fast the machine is now, beside what was measured when nothing was served: learnt from the passes."""

from __future__ import annotations

import math
import statistics
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Seconds = TypeVar("Seconds", float, npt.NDArray[np.float64])

_LEVEL_SIGMA, _LEVEL_DRIFT = 0.1, 0.01
_EXTRA_SIGMA, _EXTRA_DRIFT = 0.03, 0.0005
"""Standard deviations at first, and from one pass to the next; of `extra` as shares of the shortest pass."""
_LEAST_LEVEL = 1e-3
_FIRST, _FAR_OFF = 5, 0.7
"""If most of the first passes differ by so much (a logarithm) the calibration is of another machine."""


class _Doubt:
    """The variance of one of two estimates. `sigma` is its standard deviation at first, and at most."""

    def __init__(self, sigma: float, drift: float) -> None:
        self._sigma = sigma
        self._drift = drift
        self.variance = sigma**2

    def anew(self, factor: float) -> _Doubt:
        """As at first, of what is so many times as great."""
        return _Doubt(self._sigma * factor, self._drift * factor)

    def learn(self, less: float) -> float:
        """A pass has been seen; by what factor the covariance shrinks for the bound that is kept.

        What passes of one kind cannot tell apart would be doubted more and more.
        """
        self.variance += self._drift**2 - less
        bound = min(1.0, self._sigma / math.sqrt(self.variance))
        self.variance *= bound**2
        return bound


class MachineSpeed:
    """A pass takes `curve * level + extra * decodes`: what its tokens took alone, and what sequences add.

    A Kalman filter (Kalman, 1960) over both, linear about what is believed. What a batch takes longer than
    the curve says is mostly its contexts, which are read once however many tokens of a sequence there are;
    passes of one kind alone cannot tell that from a machine that is slow.

    Args:
        shortest_s: seconds of the shortest pass.

    Attributes:
        level: by how much passes are slower than the curve, whatever their size.
    """

    def __init__(self, shortest_s: float) -> None:
        self.level = 1.0
        self._extra_s = 0.0
        self._level_doubt = _Doubt(_LEVEL_SIGMA, _LEVEL_DRIFT)
        self._extra_doubt = _Doubt(_EXTRA_SIGMA * shortest_s, _EXTRA_DRIFT * shortest_s)
        self._covariance = 0.0
        # Of the first passes: by how much they were slower than the curve, as logarithms.
        self._first: list[float] = []

    def seconds(self, curve_s: Seconds, decodes: int) -> Seconds:
        """What a pass takes whose tokens took `curve_s` alone."""
        return curve_s * self.level + self._extra_s * decodes

    def variance(self, curve_s: float, decodes: int) -> float:
        """Of the logarithm of what such a pass takes."""
        of_level, of_extra = self._effects(curve_s, decodes)
        return (
            of_level**2 * self._level_doubt.variance
            + of_extra**2 * self._extra_doubt.variance
            + 2 * of_level * of_extra * self._covariance
        )

    def is_far_off(self, curve_s: float, seconds: float) -> bool:
        """Takes one of the first passes; whether they show that all until now has to be forgotten."""
        if len(self._first) == _FIRST:
            return False
        self._first.append(math.log(seconds / curve_s))
        middle = statistics.median(self._first)
        if len(self._first) < _FIRST or abs(middle) < _FAR_OFF:
            return False
        self.level, self._extra_s = math.exp(middle), 0.0
        self._level_doubt = self._level_doubt.anew(self.level)
        self._extra_doubt = self._extra_doubt.anew(self.level)
        self._covariance = 0.0
        return True

    def correct(self, curve_s: float, decodes: int, error: float, variance: float) -> float:
        """Takes what a pass was slower by than was to be expected.

        Args:
            curve_s: what its tokens took alone.
            decodes: its sequences.
            error: a logarithm.
            variance: of the error, `variance` of this included.

        Returns:
            By how much such a pass is expected to be slower now, a logarithm.
        """
        of_level, of_extra = self._effects(curve_s, decodes)
        before_s = self.seconds(curve_s, decodes)
        level, extra = self._level_doubt, self._extra_doubt
        level_gain = (level.variance * of_level + self._covariance * of_extra) / variance
        extra_gain = (extra.variance * of_extra + self._covariance * of_level) / variance
        self.level = max(_LEAST_LEVEL, self.level + level_gain * error)
        self._extra_s = max(0.0, self._extra_s + extra_gain * error)
        self._covariance -= level_gain * extra_gain * variance
        self._covariance *= level.learn(level_gain**2 * variance) * extra.learn(extra_gain**2 * variance)
        return math.log(self.seconds(curve_s, decodes) / before_s)

    def _effects(self, curve_s: float, decodes: int) -> tuple[float, float]:
        """By how much the logarithm of such a pass changes with level and `extra`."""
        seconds = self.seconds(curve_s, decodes)
        return curve_s / seconds, decodes / seconds
