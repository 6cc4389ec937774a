"""Which requests get how many drafts, so that all are answered soonest: exact under the given estimates.

An answer takes as many passes as it has tokens, divided by its tokens a pass. Who gains a token where there
are two a pass saves half a pass; where there is one, a whole one. So it is the logarithms of the requests'
tokens a pass that are added up, not the tokens: a request that is fast already soon makes room for another,
and a slow one keeps its place in the batch for long. That serves most tokens in the end, and it is also the
share that favours no request (proportional fairness: Kelly, Maulloo and Tan, 1998).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.speculation.acceptance import Floats

Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_AS_GOOD = 0.998
"""Of rates so near to the best the one with the fewest drafts is taken."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Drafts of a step.

    Attributes:
        counts: of each request.
        per_pass: tokens that are expected of each request.
        rate: tokens a second that are expected, were each request as fast as their geometric mean.
        seconds: that the step is expected to take.
    """

    counts: tuple[int, ...]
    per_pass: tuple[float, ...]
    rate: float
    seconds: float


class Allocator:
    """Chooses among all ways to give a step's requests drafts.

    What a request's next draft adds never rises, nor does its logarithm, so for any number of drafts in all
    the best way is to take those that add most; of these ways, one for each number, the fastest is found by
    trying all. That is right for any cost of a pass, a curve with steps too. Drafters that guess one draft
    after the other are paid by the longest chain, whoever asks for it: so this is done for each such cap.

    Args:
        gains: [B, K], right drafts that asking for each further one adds where any come; rows never rise.
        chances: [B, K], that each comes where it is asked for; rows never rise.
        limits: most drafts of each request, at most K.
        pass_seconds: [B * K + 1], time of the target's pass by the number of drafts in it.
        draft_seconds: [K + 1], time of the drafter by the most drafts of one request.
    """

    def __init__(
        self,
        gains: Floats,
        chances: Floats,
        limits: Sequence[int],
        pass_seconds: Floats,
        draft_seconds: Floats,
    ) -> None:
        requests, most = gains.shape
        self._requests = requests
        self._pass_seconds = pass_seconds
        self._draft_seconds = draft_seconds
        # That there are any drafts, and each where there are.
        some = chances[:, :1]
        # [B, K + 1] by drafts of each request, and what the logarithm of that gains by each further one.
        self._per_pass = np.ones((requests, most + 1))
        np.cumsum(gains * some, axis=1, out=self._per_pass[:, 1:])
        self._per_pass[:, 1:] += 1
        steps = np.diff(np.log(self._per_pass), axis=1)
        # All drafts that may be asked for, those first that add most where they come.
        order = np.argsort(-(steps / some), axis=None, kind="stable")
        order = order[(np.arange(most) < np.asarray(limits)[:, None]).ravel()[order]]
        self._owners, self._depths = np.divmod(order, most)
        self._steps = steps.ravel()[order]
        self._coming = chances.ravel()[order]
        # How many of those before it of the same request come on average.
        self._before = (chances.cumsum(axis=1) - chances).ravel()[order]

    def none(self) -> Allocation:
        """No drafts at all."""
        seconds = float(self._pass_seconds[0] + self._draft_seconds[0])
        ones = (1.0,) * self._requests
        return Allocation((0,) * self._requests, ones, self._requests / seconds, seconds)

    def expected(self, counts: Sequence[int]) -> Allocation:
        """What is to be expected of given counts."""
        asked = np.asarray(counts)
        chosen = (self._depths < asked[self._owners])[None, :]
        seconds = float(self._seconds(chosen, asked.max(keepdims=True))[0, -1])
        per_pass = self._per_pass[np.arange(self._requests), asked]
        rate = self._requests * float(np.exp(np.log(per_pass).mean())) / seconds
        return Allocation(tuple(counts), tuple(per_pass.tolist()), rate, seconds)

    def further_s(self, number: int) -> float:
        """How much longer a pass takes for one draft beside `number` others."""
        last = min(number + 1, len(self._pass_seconds) - 1)
        return float(self._pass_seconds[last] - self._pass_seconds[last - 1])

    def best(self, caps: Sequence[int]) -> dict[int, Allocation]:
        """For each cap the fastest way with no more drafts for one request, and one at least in all.

        Empty where none is allowed.
        """
        if not len(self._owners):
            return {}
        # [caps, drafts]: of the first so many those that are not beyond the cap.
        chosen = self._depths < np.asarray(caps)[:, None]
        seconds = self._seconds(chosen, np.asarray(caps))
        rates = self._requests * np.exp(_sums(chosen * self._steps) / self._requests) / seconds
        rates[_sums(chosen) < 1] = 0.0
        ends = (rates >= rates.max(axis=1, keepdims=True) * _AS_GOOD).argmax(axis=1)
        ways: dict[int, Allocation] = {}
        everyone = np.arange(self._requests)
        for row, (cap, end) in enumerate(zip(caps, ends.tolist(), strict=True)):
            owners = self._owners[:end][chosen[row, :end]]
            counts = np.bincount(owners, minlength=self._requests)
            per_pass = self._per_pass[everyone, counts]
            ways[cap] = Allocation(
                tuple(counts.tolist()),
                tuple(per_pass.tolist()),
                float(rates[row, end]),
                float(seconds[row, end]),
            )
        return ways

    def _seconds(self, chosen: Flags, caps: Counts) -> Floats:
        """[rows, drafts + 1], of steps with the first so many of those that are chosen, [rows, drafts].

        How many come varies, and passes are no straight line. Where a draft comes, all before it of the same
        request have come, of the others as many as do on average: from there on it makes the pass longer.
        """
        coming = chosen * self._coming
        there = _sums(coming)[:, :-1] - self._before + self._depths
        numbers = np.arange(len(self._pass_seconds))
        longer = np.interp(there + 1, numbers, self._pass_seconds)
        longer -= np.interp(there, numbers, self._pass_seconds)
        longer = _sums(coming * longer)
        seconds: Floats = self._pass_seconds[0] + longer + self._draft_seconds[caps, None]
        return seconds


def _sums(rows: npt.NDArray[np.generic]) -> Floats:
    """[rows, n + 1] of rows of n: what the first so many come to."""
    sums = np.zeros((rows.shape[0], rows.shape[1] + 1))
    np.cumsum(rows, axis=1, out=sums[:, 1:])
    return sums
