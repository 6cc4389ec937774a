"""What a drafter takes, by how many drafts are asked of it: learnt from the passes, from nothing."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt

from engine.bands import band_of

Seconds = npt.NDArray[np.float64]

_KEPT = 16
_SLOWEST = 2
"""Of so many samples the slowest are left out, at most one in four: clocks err upwards."""
_COLD = 2
"""Steps with drafts that an engine begins with, and that say nothing: pages are touched, weights packed."""
_FORGOTTEN = 256
"""Steps after which what was not seen again is not known: what seems dear would never be tried again."""


class _Latest:
    """The mean of the latest samples but for the slowest ones: what disturbed a few of them is forgotten.

    Attributes:
        value: seconds.
        at: step of the latest sample.
    """

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_KEPT)
        self.value = 0.0
        self.at = 0

    def take(self, sample: float, at: int, *, is_bound: bool = False) -> None:
        """Takes a sample; with `is_bound` what took longer than it is no longer believed."""
        if is_bound:
            self._samples = deque((before for before in self._samples if before < sample), maxlen=_KEPT)
        self._samples.append(sample)
        number = len(self._samples)
        fastest = sorted(self._samples)[: number - min(_SLOWEST, (number + 2) // 4)]
        self.value = sum(fastest) / len(fastest)
        self.at = at


class DraftCostModel:
    """Seconds that a drafter takes in a step, by decodes and by the most drafts that one of them asks for.

    The first step with drafts behind some without is no more than a bound: drafters that read the text catch
    up then on what was said meanwhile, which is no price of drafting on.

    What was not tried lately is taken to be cheap, so that it is tried; trying is what it is learnt by.
    Asking for more never costs less: where it seems to, fewer are believed to be as cheap.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._cold = _COLD
        self._drafted = False
        self._means: dict[int, dict[int, _Latest]] = {}

    def observe(self, decodes: int, most: int, seconds: float) -> None:
        """Takes one step's measurement.

        Args:
            decodes: sequences that decoded, at least 1.
            most: drafts that the greediest of them asked for; 0 for none.
            seconds: the drafter's time before and after the pass.
        """
        self._steps += 1
        if self._steps % _KEPT == 0:
            self._forget()
        catches_up, self._drafted = most > 0 and not self._drafted, most > 0
        if most and self._cold:
            self._cold -= 1
            return
        if catches_up and seconds >= self.seconds(decodes, most)[most]:
            return
        means = self._means.setdefault(band_of(decodes), {})
        means.setdefault(most, _Latest()).take(max(seconds, 0.0), self._steps, is_bound=catches_up)

    def seconds(self, decodes: int, most: int) -> Seconds:
        """[most + 1], for 0 .. `most` drafts of one sequence."""
        counts = np.arange(most + 1, dtype=np.float64)
        own = self._means.get(band_of(decodes), {})
        idle = own[0].value if 0 in own else 0.0
        known = self._nearest(decodes)
        if not known:
            return np.full(most + 1, idle)
        # Of other numbers of decodes only what drafting adds says something.
        idle_there = known[0].value if 0 in known else 0.0
        points = [(0, idle_there), *((count, known[count].value) for count in sorted(known) if count)]
        places, values = np.array(points, dtype=np.float64).T
        estimate = np.interp(counts, places, values)
        slope = (values[-1] - values[-2]) / (places[-1] - places[-2])
        estimate += np.maximum(counts - places[-1], 0.0) * max(0.0, slope)
        estimate += idle - idle_there
        lowest: Seconds = np.minimum.accumulate(estimate[::-1])[::-1]
        return np.maximum(lowest, 0.0)

    def _forget(self) -> None:
        for means in self._means.values():
            for count in [count for count, mean in means.items() if mean.at < self._steps - _FORGOTTEN]:
                del means[count]

    def _nearest(self, decodes: int) -> dict[int, _Latest]:
        """What is known of the number of decodes next to this one, of those in which any drafted."""
        own = band_of(decodes)
        bands = [band for band, means in self._means.items() if any(means)]
        if not bands:
            return {}
        return self._means[min(bands, key=lambda band: (abs(math.log(band / own)), band))]
