"""Counts what became of drafts, for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.speculation.planner import DraftOutcome, DraftPlanner, PassCost
from engine.speculation.stats import DraftBatches, SpeculationStats

_MOST_POSITIONS = 16
"""Positions behind it are counted with the last one."""


class SpeculationTally:
    """Totals over all passes that decoded. O(1) for each outcome."""

    def __init__(self) -> None:
        self._passes = 0
        self._drafted = 0
        self._draft_s = 0.0
        self._pass_s = 0.0
        self._reached: list[int] = []
        self._accepted: list[int] = []
        self._tokens: Counter[int] = Counter()
        # By the least number of decodes of a band: passes, decodes, drafts asked for.
        self._asked: dict[int, list[int]] = {}

    def observe(self, cost: PassCost, outcomes: Sequence[DraftOutcome]) -> None:
        """Counts one pass; `outcomes` has all its decodes, those without drafts too."""
        if not outcomes:
            return
        self._draft_s += cost.draft_s
        self._pass_s += cost.target_s
        band = self._asked.setdefault(1 << (len(outcomes).bit_length() - 1), [0, 0, 0])
        band[0] += 1
        for outcome in outcomes:
            self._passes += 1
            self._drafted += outcome.drafted
            self._tokens[outcome.accepted] += 1
            band[1] += 1
            band[2] += outcome.asked
            depth = outcome.depth
            while len(self._reached) < min(depth, _MOST_POSITIONS):
                self._reached.append(0)
                self._accepted.append(0)
            for position in range(depth):
                self._reached[min(position, _MOST_POSITIONS - 1)] += 1
            for position in range(outcome.accepted):
                self._accepted[min(position, _MOST_POSITIONS - 1)] += 1

    def stats(self, planner: DraftPlanner) -> SpeculationStats:
        """The totals, with what the planner left out."""
        return SpeculationStats(
            passes=self._passes,
            drafted_tokens=self._drafted,
            reached_by_position=tuple(self._reached),
            accepted_by_position=tuple(self._accepted),
            passes_by_accepted=tuple(
                self._tokens[count] for count in range(max(self._tokens, default=-1) + 1)
            ),
            batches=tuple(DraftBatches(band, *counts) for band, counts in sorted(self._asked.items())),
            draft_s=self._draft_s,
            pass_s=self._pass_s,
            off=tuple((str(reason), count) for reason, count in planner.off.items()),
        )
