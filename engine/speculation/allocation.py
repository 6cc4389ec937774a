"""Which requests get how many drafts, for the most tokens a second: exact under the given estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.speculation.acceptance import Floats

Counts = npt.NDArray[np.int64]

_AS_GOOD = 1 - 1e-3
"""Of rates so near to the best the one with the fewest drafts is taken."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Drafts of a step.

    Attributes:
        counts: of each request.
        rate: tokens a second that are expected.
        seconds: that the step is expected to take.
    """

    counts: tuple[int, ...]
    rate: float
    seconds: float


class Allocator:
    """Chooses among all ways to give a step's requests drafts.

    What a request's next draft adds never rises, so for any number of drafts in all the best way is to take
    those that add most; of these ways, one for each number, the fastest is found by trying all. That is
    right for any cost of a pass, a curve with steps too. Drafters that guess one draft after the other are
    paid by the longest chain, whoever asks for it: so this is done for each such cap.

    Args:
        gains: [B, K], right drafts that each further one adds where there are drafts; rows never rise.
        chances: [B], that there are drafts.
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
        self._by_request = gains * chances[:, None]
        self._by_chance = chances
        self._pass_seconds = pass_seconds
        self._draft_seconds = draft_seconds
        allowed = np.arange(most)[None, :] < np.asarray(limits)[:, None]
        order = np.argsort(-gains, axis=None, kind="stable")
        order = order[allowed.ravel()[order]]
        self._owners, self._depths = np.divmod(order, most)
        self._chances = chances[self._owners]
        self._gains = gains.ravel()[order] * self._chances

    def none(self) -> Allocation:
        """No drafts at all."""
        seconds = float(self._pass_seconds[0] + self._draft_seconds[0])
        return Allocation((0,) * self._requests, self._requests / seconds, seconds)

    def expected(self, counts: Sequence[int]) -> Allocation:
        """What is to be expected of given counts."""
        asked = np.asarray(counts)
        chosen = np.arange(self._by_request.shape[1])[None, :] < asked[:, None]
        number = int(asked.sum())
        coming = float(self._by_chance @ asked) / max(1, number)
        seconds = self._seconds(np.array([number]), np.array([coming]), int(asked.max()))
        tokens = self._requests + float(self._by_request[chosen].sum())
        return Allocation(tuple(counts), tokens / float(seconds[0]), float(seconds[0]))

    def further_s(self, number: int) -> float:
        """How much longer a pass takes for one draft beside `number` others."""
        last = min(number + 1, len(self._pass_seconds) - 1)
        return float(self._pass_seconds[last] - self._pass_seconds[last - 1])

    def best(self, cap: int, *, at_least: int = 1) -> Allocation | None:
        """The fastest way with at most `cap` drafts for one request, and `at_least` so many in all.

        None where so many are not allowed.
        """
        chosen = self._depths < cap
        owners = self._owners[chosen]
        if len(owners) < at_least:
            return None
        numbers = np.arange(len(owners) + 1)
        tokens = np.zeros(len(numbers))
        np.cumsum(self._gains[chosen], out=tokens[1:])
        coming = np.zeros(len(numbers))
        np.cumsum(self._chances[chosen], out=coming[1:])
        coming /= np.maximum(numbers, 1)
        seconds = self._seconds(numbers, coming, cap)
        rates = ((self._requests + tokens) / seconds)[at_least:]
        number = int((rates >= rates.max() * _AS_GOOD).argmax()) + at_least
        counts = np.bincount(owners[:number], minlength=self._requests)
        return Allocation(tuple(counts.tolist()), float(rates[number - at_least]), float(seconds[number]))

    def _seconds(self, numbers: Counts, coming: Floats, cap: int) -> Floats:
        """Of steps with so many drafts, of which such a share comes: between all of them and none."""
        alone = self._pass_seconds[0]
        seconds: Floats = alone + coming * (self._pass_seconds[numbers] - alone) + self._draft_seconds[cap]
        return seconds
