"""How often a drafter has anything to propose: prompt lookup, for one, often finds no match."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.speculation.acceptance import Floats

_FIRST_CHANCE = 0.9
_PRIOR_TIMES = 8.0
_OWN_PRIOR_TIMES = 4.0
_DEPLOYMENT_DECAY = 0.998
_LEAST_WEIGHT = 16.0
_OWN_DECAY = 1 - 1 / 24


class Availability:
    """Chances that drafts come where they are asked for, by request. The latest times count most."""

    def __init__(self) -> None:
        self._times = 0.0
        self._found = 0.0
        # Of a request: times that it was asked for drafts, times that there were some.
        self._own: dict[int, tuple[float, float]] = {}

    def chances(self, requests: Sequence[int]) -> Floats:
        """[len(requests)], in (0, 1]."""
        mean = (_PRIOR_TIMES * _FIRST_CHANCE + self._found) / (_PRIOR_TIMES + self._times)
        own = np.array([self._own.get(request, (0.0, 0.0)) for request in requests]).reshape(-1, 2)
        chances: Floats = (_OWN_PRIOR_TIMES * mean + own[:, 1]) / (_OWN_PRIOR_TIMES + own[:, 0])
        return chances

    def observe(self, request: int, found: bool) -> None:
        """A request was asked for drafts, and there were some or none."""
        self._times += 1
        self._found += found
        times, some = self._own.get(request, (0.0, 0.0))
        self._own[request] = (times * _OWN_DECAY + 1, some * _OWN_DECAY + found)

    def step(self) -> None:
        """Time passes: what was seen counts a little less, down to a least weight."""
        if self._times > _LEAST_WEIGHT:
            self._times *= _DEPLOYMENT_DECAY
            self._found *= _DEPLOYMENT_DECAY

    def forget(self, request: int) -> None:
        """The request has ended; it may be unknown."""
        self._own.pop(request, None)
