"""Speculation as the engine's steps see it: how many drafts, which, and what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.runner import RunResult
from engine.schedule import Schedule
from engine.sequence import Sequence as EngineSequence
from engine.speculation.base import Extent, TargetPass
from engine.speculation.choice import Drafters
from engine.speculation.planner import DraftOutcome, DraftPlanner, PassCost
from engine.speculation.stats import SpeculationStats
from engine.speculation.tally import SpeculationTally
from engine.speculation.tree import DraftTree


class Speculator:
    """Ties drafters and a plan to the steps of an engine: `wanted`, `propose`, the pass, `extend`.

    Args:
        drafters: make the guesses.
        planner: says how many guesses pay.
        clock: monotonic seconds, by which drafting is measured.

    Attributes:
        drafters: as given.
    """

    def __init__(
        self, drafters: Drafters, planner: DraftPlanner, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.drafters = drafters
        self._planner = planner
        self._clock = clock
        self._tally = SpeculationTally()
        # Of the step under way: each decode's drafts, and the time that finding them took.
        self._trees: list[DraftTree | None] = []
        self._draft_s = 0.0

    def stats(self) -> SpeculationStats | None:
        """Totals so far; None where nobody has asked for drafts, and the deployment has none of its own."""
        return self._tally.stats(self._planner) if self.drafters.in_use else None

    def wanted(self, sequences: list[EngineSequence]) -> Sequence[int]:
        """Drafts that each of the step's decodes is to have; empty where nobody is to have any."""
        drafters = self.drafters
        if drafters.own is None:
            asked = drafters.in_use and any(sequence.drafter is not None for sequence in sequences)
            if not asked:
                return ()
        return self._planner.wanted(sequences)

    def propose(self, schedule: Schedule) -> None:
        """Gives the decodes their drafts, as far as there is room for them."""
        if not schedule.lookahead:
            self._trees, self._draft_s = [None] * schedule.num_decodes, 0.0
            return
        begin_s = self._clock()
        decodes = schedule.sequences[: schedule.num_decodes]
        self._trees = [None] * len(decodes)
        places = [place for place, count in enumerate(schedule.lookahead) if count]
        if places:
            found = self.drafters.propose(
                [decodes[place] for place in places], [schedule.lookahead[place] for place in places]
            )
            for place, tree in zip(places, found, strict=True):
                self._trees[place] = tree
            kept = self._planner.kept(decodes, schedule.lookahead, self._trees)
            for place in places:
                tree = self._trees[place]
                self._trees[place] = None if tree is None else tree.first(kept[place])
        for place, tree in enumerate(self._trees):
            schedule.attach(place, tree)
        self._draft_s = self._clock() - begin_s

    def extend(
        self,
        schedule: Schedule,
        result: RunResult,
        went_on: Sequence[tuple[int, EngineSequence, int]],
        target_s: float,
    ) -> Sequence[DraftOutcome]:
        """Tells the drafter what a pass of the target found, and learns from it.

        Args:
            schedule: of the pass.
            result: of the pass.
            went_on: index of each sequence that did not fail, the sequence, which has grown, and the position
                of its first token in the pass.
            target_s: what the pass took, verification included.

        Returns:
            What became of the drafts of each decode that has a drafter and did not fail, of those without any
            drafts too.
        """
        if not self.drafters.in_use:
            return ()
        begin_s = self._clock()
        self.drafters.extend(_pass_of(schedule, result, went_on))
        if self.drafters.own is None and not schedule.lookahead:
            return ()
        draft_s = self._draft_s + self._clock() - begin_s
        outcomes = [
            DraftOutcome(
                sequence=sequence,
                asked=schedule.lookahead[index] if schedule.lookahead else 0,
                tree=_without_distributions(self._trees[index]),
                path=result.drawn[index].path,
            )
            for index, sequence, _ in went_on
            if index < schedule.num_decodes
        ]
        decodes = schedule.num_decodes
        cost = PassCost(
            decodes=decodes,
            nodes=sum(schedule.counts[:decodes]),
            prompt_tokens=sum(schedule.counts[decodes:]),
            target_s=target_s,
            draft_s=draft_s,
        )
        self._planner.observe(cost, outcomes)
        told = [outcome for outcome in outcomes if outcome.sequence.drafter is not None]
        self._tally.observe(cost, told)
        return told


def _without_distributions(tree: DraftTree | None) -> DraftTree | None:
    if tree is None or tree.distributions is None:
        return tree
    return replace(tree, distributions=None)


def _pass_of(
    schedule: Schedule, result: RunResult, went_on: Sequence[tuple[int, EngineSequence, int]]
) -> TargetPass:
    extents: list[Extent] = []
    for index, sequence, first in went_on:
        start = result.query_starts[index]
        drawn = result.drawn.get(index)
        if drawn is not None and index < schedule.num_decodes:
            rows: Sequence[int] = [start, *(start + node for node in drawn.path)]
        else:
            rows = range(start, start + schedule.counts[index])
        rows = rows[: sequence.num_computed - first]
        extents.append(Extent(sequence, first, rows, sequence.recompute_last))
    return TargetPass(tuple(extents), result.features)
