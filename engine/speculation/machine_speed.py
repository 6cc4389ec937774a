"""How fast the machine is now, beside what was measured when nothing was served: learnt from the passes."""

from __future__ import annotations

import math
import statistics
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Seconds = TypeVar("Seconds", float, npt.NDArray[np.float64])

_LEVEL_SIGMA = 0.1
_EXTRA_SIGMA = 0.03
"""Standard deviations of what is usual; of `extra` as a share of the shortest pass."""
_MEMORY = 128
"""Passes after which what no others have confirmed is believed a third as much."""
_LEAST_LEVEL = 1e-3
_FIRST, _FAR_OFF = 16, 0.7
"""If most of the first passes are faster by so much (a logarithm) the calibration is of no use."""


class MachineSpeed:
    """A pass takes `curve * level + extra * decodes`: what its tokens took alone, and what sequences add.

    A Kalman filter (Kalman, 1960) over both, linear about what is believed; without passes that say otherwise
    both return to what is usual (as Ornstein and Uhlenbeck's process, 1930), the curve's speed and no extra
    time. What a batch takes longer than the curve says is mostly its contexts, which are read once however
    many tokens of a sequence there are; passes of one kind alone cannot tell that from a slow machine. Then
    what is usual decides, and a machine that was slow for a moment is soon forgotten. One that stays slow is
    taken to have long contexts: sizes that were not seen seem cheaper than they are, and are tried.

    Args:
        shortest_s: seconds of the shortest pass.
    """

    def __init__(self, shortest_s: float) -> None:
        self._shortest_s = shortest_s
        self._begin(1.0)
        # Of the first passes: by how much they were slower than the curve, as logarithms.
        self._first: list[float] = []

    def _begin(self, level: float) -> None:
        self._usual = self._level = level
        self._extra_s = 0.0
        self._usual_variances = (_LEVEL_SIGMA * level) ** 2, (_EXTRA_SIGMA * level * self._shortest_s) ** 2
        self._level_variance, self._extra_variance = self._usual_variances
        self._covariance = 0.0

    def seconds(self, curve_s: Seconds, decodes: int) -> Seconds:
        """What a pass takes whose tokens took `curve_s` alone."""
        return curve_s * self._level + self._extra_s * decodes

    def variance(self, curve_s: float, decodes: int) -> float:
        """Of the logarithm of what such a pass takes."""
        of_level, of_extra = self._effects(curve_s, decodes)
        return (
            of_level**2 * self._level_variance
            + of_extra**2 * self._extra_variance
            + 2 * of_level * of_extra * self._covariance
        )

    def begins_anew(self, curve_s: float, seconds: float) -> bool:
        """Takes one of the first passes; whether they show that the machine was measured while it was busy.

        Then what is usual is as they are, and all that was believed until now is to be forgotten.
        """
        if len(self._first) == _FIRST:
            return False
        self._first.append(math.log(seconds / curve_s))
        middle = statistics.median(self._first)
        # Slow ones say nothing of the kind: others may begin at the same moment, and contexts may be long.
        if len(self._first) < _FIRST or middle > -_FAR_OFF:
            return False
        self._begin(math.exp(middle))
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
        level_gain = (self._level_variance * of_level + self._covariance * of_extra) / variance
        extra_gain = (self._extra_variance * of_extra + self._covariance * of_level) / variance
        self._level += level_gain * error
        self._extra_s += extra_gain * error
        self._level_variance -= level_gain**2 * variance
        self._extra_variance -= extra_gain**2 * variance
        self._covariance -= level_gain * extra_gain * variance
        self._pass_time()
        if self._extra_s < 0:
            # It cannot be: what it is short of is the level's, as far as the two go together.
            self._level -= self._extra_s * self._covariance / self._extra_variance
            self._extra_s = 0.0
        self._level = max(_LEAST_LEVEL, self._level)
        return math.log(self.seconds(curve_s, decodes) / before_s)

    def _pass_time(self) -> None:
        kept = 1 - 1 / _MEMORY
        self._level = self._usual + kept * (self._level - self._usual)
        self._extra_s *= kept
        level_variance, extra_variance = self._usual_variances
        self._level_variance += (1 - kept**2) * (level_variance - self._level_variance)
        self._extra_variance += (1 - kept**2) * (extra_variance - self._extra_variance)
        self._covariance *= kept**2

    def _effects(self, curve_s: float, decodes: int) -> tuple[float, float]:
        """By how much the logarithm of such a pass changes with level and `extra`."""
        seconds = self.seconds(curve_s, decodes)
        return curve_s / seconds, decodes / seconds
