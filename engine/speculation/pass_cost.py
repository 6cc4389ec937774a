"""What a pass of the target costs by the tokens in it: a calibrated curve, corrected by the passes.

A pass of n tokens takes what `machine_speed` says of the calibrated curve, times `exp(deviation)`:

- the curve was measured on this machine before anything was served, without contexts;
- the machine's speed follows every pass, so that only ratios between passes have to be remembered;
- the deviation is what passes of so many sequences and so many tokens differ by from that: what verification
  adds, where tiles end. It is a Gaussian process over the logarithms of both (Rasmussen and Williams, 2006,
  ch. 2): passes that are much alike cost about the same, so what was seen seldom or long ago is corrected by
  its neighbours.

Clocks err upwards: a machine has hiccups, but no pass is ever too fast. What is slower than expected
therefore counts as no more than `_SLOW_SIGMAS` standard deviations, what is faster as no more than
`_FAST_SIGMAS`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from engine.bands import band_of, band_up_to
from engine.speculation.machine_speed import MachineSpeed

Seconds = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

_LEAST_S = 1e-9
_NOISE = 0.06
"""Standard deviation of one pass's time, as a share of it."""
_SMOOTH, _REACH = 0.15, 0.7
"""Standard deviation of what neighbours share, and over what ratio (its logarithm) they are such."""
_LOCAL = 0.04
"""Standard deviation of what a band of tokens has for itself."""
_DRIFT = 0.004
"""Standard deviation of a band's change from one pass to the next."""
_SLOW_SIGMAS, _FAST_SIGMAS = 1.5, 3.0
_COLD = 8
"""Passes that an engine begins with, and that say nothing: pages are touched, others begin beside it."""
_MOST_BANDS = 40
"""Bands that an estimate takes into account, the nearest ones: its cost grows with their cube."""
_REFRESH = 16
"""Passes for which it stays as it is how much each of them counts."""


@dataclass(slots=True)
class _Seen:
    """Mean deviation of a band's passes, and the variance of that mean as of the pass `at`."""

    mean: float
    variance: float
    at: int


class PassCostModel:
    """Estimates in seconds. Deterministic given the measurements.

    Args:
        calibration: (tokens, seconds) of passes without contexts, at least one; what takes longer than others
            show that it can is corrected by them. The straight line between them, then the last slope.

    Raises:
        ValueError: there is no calibration, or one of its numbers is not above 0.
    """

    def __init__(self, calibration: Sequence[tuple[int, float]]) -> None:
        if not calibration or any(tokens < 1 or seconds <= 0 for tokens, seconds in calibration):
            raise ValueError("a calibration has at least one point, of tokens and seconds above 0")
        # Of several times for one size the least is right: the last that is put in.
        points = dict(sorted(calibration, reverse=True))
        self._tokens = np.array(sorted(points), dtype=np.float64)
        # Clocks err upwards: what more tokens were seen to take is enough for fewer, and so are passes of
        # fewer one after the other for more.
        passes = np.ceil(self._tokens[:, None] / self._tokens[None, :])
        self._seconds = (passes * [points[size] for size in sorted(points)]).min(axis=1)
        self._speed = MachineSpeed(float(self._seconds[0]))
        self._passes = 0
        # By band of sequences and band of tokens.
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._bases: dict[int, _Basis] = {}
        # By tokens: it does not change, and is asked for after each pass.
        self._curves: dict[int, float] = {}

    def observe(self, decodes: int, nodes: int, seconds: float) -> None:
        """Takes one pass's measurement. What a clock says is over at once is ignored.

        Args:
            decodes: sequences in it, at least 1.
            nodes: tokens in it, at least as many.
            seconds: how long it took.
        """
        if seconds < _LEAST_S:
            return
        self._passes += 1
        if self._passes <= _COLD:
            return
        band = band_up_to(nodes)
        mean, doubt = self._basis(decodes).deviation((band,))
        deviation, variance = float(mean[0]), float(doubt[0])
        curve = self._curves.get(nodes)
        if curve is None:
            curve = self._curves[nodes] = float(self._curve(np.array([nodes]))[0])
        if self._speed.begins_anew(curve, seconds):
            self._seen.clear()
            self._bases.clear()
            return
        expected = math.log(self._speed.seconds(curve, decodes)) + deviation
        variance += self._speed.variance(curve, decodes) + _NOISE**2
        sigma = math.sqrt(variance)
        error = min(max(math.log(seconds) - expected, -_FAST_SIGMAS * sigma), _SLOW_SIGMAS * sigma)
        # A surprise where all was known says how the machine is; elsewhere, how such passes are.
        moved = self._speed.correct(curve, decodes, error, variance)
        sample = deviation + error - moved
        key = band_of(decodes), band
        known = self._seen.get(key)
        if known is None:
            self._seen[key] = _Seen(sample, _NOISE**2, self._passes)
        else:
            before = known.variance + (self._passes - known.at) * _DRIFT**2
            share = before / (before + _NOISE**2)
            known.mean += share * (sample - known.mean)
            known.variance = (1 - share) * before
            known.at = self._passes

    def seconds(self, decodes: int, most: int, *, sigmas: float = 0.0) -> Seconds:
        """[most - decodes + 1], of passes of `decodes` sequences and from `decodes` to `most` tokens.

        With `sigmas` so many standard deviations of such passes less than is to be expected: how fast they
        may well be on a machine like this.
        """
        bands, places = _bands_between(decodes, most)
        deviation, doubt = self._basis(decodes).deviation(bands)
        if sigmas:
            deviation = deviation - sigmas * np.sqrt(doubt)
        curve = self._curve(np.arange(decodes, most + 1))
        seconds: Seconds = self._speed.seconds(curve, decodes) * np.exp(deviation)[places]
        return seconds

    def _curve(self, nodes: Counts) -> Seconds:
        inside: Seconds = np.interp(nodes, self._tokens, self._seconds)
        if len(self._tokens) > 1:
            slope = (self._seconds[-1] - self._seconds[-2]) / (self._tokens[-1] - self._tokens[-2])
            inside = inside + np.maximum(nodes - self._tokens[-1], 0.0) * slope
        return inside

    def _basis(self, decodes: int) -> _Basis:
        band = band_of(decodes)
        basis = self._bases.get(band)
        if basis is None or basis.known != len(self._seen) or self._passes - basis.made_at >= _REFRESH:
            basis = self._bases[band] = _Basis(band, self._seen, self._passes)
        return basis


class _Basis:
    """The process for one band of sequences, from the bands of passes seen that are nearest to it.

    How much each of these counts is worked out anew every few passes; what they say is taken as it is.
    """

    def __init__(self, decodes: int, seen: Mapping[tuple[int, int], _Seen], passes: int) -> None:
        self.made_at = passes
        self.known = len(seen)
        self._decodes = decodes
        keys = sorted(seen, key=lambda key: (abs(math.log(key[0] / decodes)), key))[:_MOST_BANDS]
        self._nearest = [seen[key] for key in keys]
        self._places = np.log(np.array(keys, dtype=np.float64).reshape(-1, 2)) / _REACH
        noise = [each.variance + (passes - each.at) * _DRIFT**2 for each in self._nearest]
        self._among = np.linalg.inv(_covariance(self._places, self._places) + np.diag(noise))
        self._weights: dict[tuple[int, ...], tuple[Seconds, Seconds]] = {}

    def deviation(self, bands: tuple[int, ...]) -> tuple[Seconds, Seconds]:
        """Mean and variance for the bands of tokens that end with these numbers, [len(bands)] each."""
        known = self._weights.get(bands)
        if known is None:
            wanted = np.log([(self._decodes, band) for band in bands]) / _REACH
            across = _covariance(wanted, self._places)
            weights: Seconds = across @ self._among
            doubt: Seconds = np.maximum(_SMOOTH**2 + _LOCAL**2 - (weights * across).sum(axis=1), 0.0)
            known = self._weights[bands] = weights, doubt
        weights, doubt = known
        mean: Seconds = weights @ np.array([each.mean for each in self._nearest])
        return mean, doubt


@lru_cache(maxsize=256)
def _bands_between(least: int, most: int) -> tuple[tuple[int, ...], Counts]:
    """The bands that numbers of tokens lie in, and for each number which of them."""
    numbers = [band_up_to(count) for count in range(least, most + 1)]
    bands, places = np.unique(numbers, return_inverse=True)
    return tuple(bands.tolist()), places


def _covariance(some: Seconds, others: Seconds) -> Seconds:
    """[len(some), len(others)] between places, which are rows of two coordinates."""
    apart = ((some[:, None] - others[None, :]) ** 2).sum(axis=2)
    covariance: Seconds = _SMOOTH**2 * np.exp(-0.5 * apart) + _LOCAL**2 * (apart == 0)
    return covariance
