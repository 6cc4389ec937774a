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


def worth_verifying(
    gains: Sequence[Sequence[float]], found: Sequence[int], pass_seconds: Floats, drafting_s: float
) -> list[int]:
    """How many of the drafts that were found are verified for the most tokens a second, of each request.

    As `Allocator` chooses where drafts are there and paid for; for each step, so without its arrays.

    Args:
        gains: of each request, what each draft adds; never rising, at least as many as were found.
        found: drafts of each request.
        pass_seconds: as `Allocator` has it, up to all of them.
        drafting_s: what finding them took.
    """
    pairs = zip(gains, found, strict=True)
    order = [(gain, request) for request, (own, count) in enumerate(pairs) for gain in own[:count]]
    order.sort(key=lambda draft: -draft[0])
    tokens = float(len(found))
    rates = [tokens / (float(pass_seconds[0]) + drafting_s)]
    for (gain, _), seconds in zip(order, pass_seconds[1 : len(order) + 1].tolist(), strict=True):
        tokens += gain
        rates.append(tokens / (seconds + drafting_s))
    least = max(rates) * _AS_GOOD
    counts = [0] * len(found)
    for rate, (_, request) in zip(rates, order, strict=False):
        if rate >= least:
            break
        counts[request] += 1
    return counts


class Allocator:
    """Chooses among all ways to give a step's requests drafts.

    What a request's next draft adds never rises, so for any number of drafts in all the best way is to take
    those that add most; of these ways, one for each number, the fastest is found by trying all. That is
    right for any cost of a pass, a curve with steps too. Drafters that guess one draft after the other are
    paid by the longest chain, whoever asks for it: so this is done for each such cap.

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
        self._by_request = gains * chances[:, :1]
        self._by_chance = chances
        self._pass_seconds = pass_seconds
        self._draft_seconds = draft_seconds
        # All drafts that may be asked for, the best first.
        order = np.argsort(-gains, axis=None, kind="stable")
        order = order[(np.arange(most) < np.asarray(limits)[:, None]).ravel()[order]]
        self._owners, self._depths = np.divmod(order, most)
        self._chances = chances.ravel()[order]
        self._gains = self._by_request.ravel()[order]

    def none(self) -> Allocation:
        """No drafts at all."""
        seconds = float(self._pass_seconds[0] + self._draft_seconds[0])
        return Allocation((0,) * self._requests, self._requests / seconds, seconds)

    def expected(self, counts: Sequence[int]) -> Allocation:
        """What is to be expected of given counts."""
        asked = np.asarray(counts)
        chosen = np.arange(self._by_request.shape[1])[None, :] < asked[:, None]
        number = int(asked.sum())
        coming = float(self._by_chance[chosen].sum()) / max(1, number)
        seconds = self._seconds(np.array([number]), np.array([coming]), asked.max(keepdims=True))
        tokens = self._requests + float(self._by_request[chosen].sum())
        return Allocation(tuple(counts), tokens / float(seconds[0]), float(seconds[0]))

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
        # [caps, drafts + 1]: what the first so many drafts come to, those beyond the cap left out.
        chosen = np.zeros((len(caps), len(self._owners) + 1), dtype=np.int64)
        chosen[:, 1:] = self._depths < np.asarray(caps)[:, None]
        numbers = chosen.cumsum(axis=1)
        tokens, coming = np.zeros(chosen.shape), np.zeros(chosen.shape)
        (chosen[:, 1:] * self._gains).cumsum(axis=1, out=tokens[:, 1:])
        (chosen[:, 1:] * self._chances).cumsum(axis=1, out=coming[:, 1:])
        seconds = self._seconds(numbers, coming / np.maximum(numbers, 1), np.asarray(caps)[:, None])
        rates = (self._requests + tokens) / seconds
        rates[numbers < 1] = 0.0
        ends = (rates >= rates.max(axis=1, keepdims=True) * _AS_GOOD).argmax(axis=1)
        ways: dict[int, Allocation] = {}
        for row, (cap, end) in enumerate(zip(caps, ends.tolist(), strict=True)):
            owners = self._owners[:end][chosen[row, 1 : end + 1] > 0]
            counts = np.bincount(owners, minlength=self._requests)
            ways[cap] = Allocation(tuple(counts.tolist()), float(rates[row, end]), float(seconds[row, end]))
        return ways

    def _seconds(self, numbers: Counts, coming: Floats, caps: Counts) -> Floats:
        """Of steps with so many drafts, of which such a share comes: between all of them and none."""
        alone = self._pass_seconds[0]
        seconds: Floats = alone + coming * (self._pass_seconds[numbers] - alone) + self._draft_seconds[caps]
        return seconds
