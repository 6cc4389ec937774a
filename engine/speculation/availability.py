"""How many of the drafts that are asked for come: prompt lookup often finds no match, a head that is not sure
ends its chain, and what a head is not sure enough of for the price of its verification is as good as none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.speculation.acceptance import Floats
from engine.speculation.tree import MAX_NODES

_FIRST_CHANCE = 0.9
_PRIOR_TIMES = 8.0
_OWN_PRIOR_TIMES = 4.0
_DEPLOYMENT_DECAY = 0.998
_LEAST_WEIGHT = 16.0
_OWN_DECAY = 1 - 1 / 24


class Availability:
    """Chances that drafts come where they are asked for. The latest times count most.

    Whether there are any is learnt by request; how many there are then, by position, of all requests.
    """

    def __init__(self) -> None:
        # Of proposals that had a draft: those that were asked for one at each position, those that had it.
        self._asked = np.full(MAX_NODES, _PRIOR_TIMES)
        self._came = np.full(MAX_NODES, _PRIOR_TIMES)
        self._times = 0.0
        self._found = 0.0
        # Of a request: times that it was asked for drafts, times that there were some.
        self._own: dict[int, tuple[float, float]] = {}

    def chances(self, requests: Sequence[int], most: int) -> Floats:
        """[len(requests), most], in (0, 1]: that a draft comes at each position; rows never rise."""
        mean = (_PRIOR_TIMES * _FIRST_CHANCE + self._found) / (_PRIOR_TIMES + self._times)
        own = np.array([self._own.get(request, (0.0, 0.0)) for request in requests]).reshape(-1, 2)
        some = (_OWN_PRIOR_TIMES * mean + own[:, 1]) / (_OWN_PRIOR_TIMES + own[:, 0])
        chances: Floats = some[:, None] * np.minimum.accumulate(self._came[:most] / self._asked[:most])
        return chances

    def observe(self, request: int, asked: int, found: int) -> None:
        """A request was asked for drafts, at least 1, and there were `found`."""
        self._times += 1
        self._found += found > 0
        times, some = self._own.get(request, (0.0, 0.0))
        self._own[request] = (times * _OWN_DECAY + 1, some * _OWN_DECAY + (found > 0))
        if found:
            self._asked[:asked] += 1
            self._came[:found] += 1

    def step(self) -> None:
        """Time passes: what was seen counts a little less, down to a least weight."""
        if self._times > _LEAST_WEIGHT:
            self._times *= _DEPLOYMENT_DECAY
            self._found *= _DEPLOYMENT_DECAY
            self._asked *= _DEPLOYMENT_DECAY
            self._came *= _DEPLOYMENT_DECAY

    def forget(self, request: int) -> None:
        """The request has ended; it may be unknown."""
        self._own.pop(request, None)
