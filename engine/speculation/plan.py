"""What the adaptive operating point chose for some steps, and what it is to learn from each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from engine.sequence import Sequence as EngineSequence
from engine.speculation.acceptance import Floats
from engine.speculation.allocation import Allocation
from engine.speculation.planner import DraftOutcome, PassCost


class Mode(Enum):
    """Why a step is as it is: by choice, or to find out what no drafts, some, or a few more would give."""

    CHOSEN = auto()
    PROBE_NONE = auto()
    PROBE_DRAFTS = auto()


@dataclass(frozen=True, slots=True)
class Share:
    """What one request has by a plan.

    Attributes:
        count: of drafts.
        per_pass: tokens that are expected of it.
        promised: right drafts by the number of drafts, before what is kept of promises.
        coming: right drafts that each one adds if it comes, before what is kept of promises; never rising.
    """

    count: int
    per_pass: float
    promised: Sequence[float]
    coming: Sequence[float]


@dataclass(frozen=True, slots=True)
class Plan:
    """What `wanted` chose, for the steps until it chooses again.

    Attributes:
        mode: why.
        allocation: drafts of each request; None before the first step.
        shares: by request.
        newcomer: of one that was not there yet; None where no such can be told.
        retried: requests that have one draft beside that, which is verified whatever it costs.
        verifies_all: whether that holds for all drafts.
        pass_s: of the target, by the number of drafts.
        lasts: whether it may be taken again.
        age: steps for which it was.
    """

    mode: Mode = Mode.CHOSEN
    allocation: Allocation | None = None
    shares: Mapping[int, Share] = field(default_factory=dict)
    newcomer: Share | None = None
    retried: frozenset[int] = frozenset()
    verifies_all: bool = False
    pass_s: Floats = field(default_factory=lambda: np.zeros(1))
    lasts: bool = False
    age: int = 0

    def share(self, request: int) -> Share | None:
        """What a request has; None where that was not thought of."""
        return self.shares.get(request, self.newcomer)


@dataclass(frozen=True, slots=True)
class Seen:
    """A step that is to be learnt from, and the plan that it was made by.

    Attributes:
        plan: see `Plan`.
        cost: of the pass.
        outcomes: of the drafts.
        found: of each request that was asked for drafts, for how many, and how many there were; where the
            drafter tells how sure it is, how many of them were verified: others are as good as none.
        exhausted: for how many drafts a request was asked where it had fewer such, all of them verified.
    """

    plan: Plan
    cost: PassCost
    outcomes: Sequence[DraftOutcome]
    found: Sequence[tuple[EngineSequence, int, int]]
    exhausted: Mapping[int, int]


def shares_of(allocation: Allocation, gains: Floats, chances: Floats) -> list[Share]:
    """Of each request."""
    promised = np.pad(gains.cumsum(axis=1), ((0, 0), (1, 0)))
    # What was promised of a draft counts the times that it does not come.
    coming = np.minimum.accumulate(gains * chances[:, :1] / chances, axis=1)
    rows = zip(allocation.counts, allocation.per_pass, promised.tolist(), coming.tolist(), strict=True)
    return [Share(*row) for row in rows]


def usual_of(shares: Sequence[Share]) -> Share | None:
    """One with as many drafts as half of them have; None of none."""
    return sorted(shares, key=lambda share: share.count)[len(shares) // 2] if shares else None
