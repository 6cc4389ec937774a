"""How certain a figure is: percentile bootstrap over paired runs (Efron and Tibshirani, 1993)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
LEAST_SAMPLES = 5
"""Fewer say nothing of how they vary."""
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the central 95 % of what resampled runs give; without bounds where runs are few.

    Attributes:
        value: of all runs.
        low: lower bound; -inf where there are fewer than `LEAST_SAMPLES`.
        high: upper bound; inf likewise.
    """

    value: float
    low: float = -math.inf
    high: float = math.inf

    @property
    def spread(self) -> float:
        """The whole width, of the value."""
        return (self.high - self.low) / self.value

    @property
    def is_known(self) -> bool:
        """Whether there are bounds."""
        return math.isfinite(self.low)

    def text(self, digits: int = 2) -> str:
        """`value [low .. high]`."""
        bounds = f" [{self.low:.{digits}f} .. {self.high:.{digits}f}]" if self.is_known else ""
        return f"{self.value:.{digits}f}{bounds}"


def median_of(samples: Sequence[float]) -> Interval:
    """The median of paired runs, at least one."""
    values = np.asarray(samples)
    median = float(np.median(values))
    if len(values) < LEAST_SAMPLES:
        return Interval(median)
    resampled = np.median(values[_indices(len(values))], axis=1)
    return _interval(median, resampled)


def of_sums(strata: Sequence[Floats], statistic: Callable[[Floats], Floats]) -> Interval:
    """A figure that depends on sums over runs, which are resampled within each stratum.

    Args:
        strata: of each, [runs, counts], at least one run.
        statistic: [..., strata, counts] sums -> [...] figures.
    """
    value = float(statistic(np.stack([stratum.sum(axis=0) for stratum in strata])))
    if min(len(stratum) for stratum in strata) < LEAST_SAMPLES:
        return Interval(value)
    sums = [stratum[_indices(len(stratum), place)].sum(axis=1) for place, stratum in enumerate(strata)]
    return _interval(value, statistic(np.stack(sums, axis=1)))


def _indices(samples: int, stratum: int = 0) -> npt.NDArray[np.intp]:
    return np.random.default_rng(stratum).integers(0, samples, (_RESAMPLES, samples))


def _interval(value: float, resampled: Floats) -> Interval:
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [outside, 1 - outside])
    return Interval(value, float(low), float(high))
