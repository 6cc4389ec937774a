"""Speculation as the engine's steps see it: how many drafts, which, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.models.features import FeaturePoints
from engine.runner import RunResult
from engine.schedule import Schedule
from engine.sequence import Sequence as EngineSequence
from engine.speculation.base import Drafter, Extent, TargetPass
from engine.speculation.planner import DraftPlanner


class Speculator:
    """Ties a drafter and a plan to the steps of an engine.

    Args:
        drafter: guesses.
        planner: says how many guesses pay.
    """

    def __init__(self, drafter: Drafter, planner: DraftPlanner) -> None:
        self.drafter = drafter
        self._planner = planner

    def wanted(self, sequences: Iterable[EngineSequence]) -> Sequence[int]:
        """Drafts that each of the step's decodes is to have."""
        return self._planner.wanted(list(sequences))

    def propose(self, schedule: Schedule) -> None:
        """Gives the decodes their drafts, as far as there is room for them."""
        places = [place for place, count in enumerate(schedule.lookahead) if count]
        for place in range(schedule.num_decodes):
            schedule.sequences[place].drafts = None
        if not places:
            return
        trees = self.drafter.propose(
            [schedule.sequences[place] for place in places], [schedule.lookahead[place] for place in places]
        )
        decodes = schedule.sequences[: schedule.num_decodes]
        drafted = [0] * len(decodes)
        for place, tree in zip(places, trees, strict=True):
            drafted[place] = 0 if tree is None else tree.num_nodes - 1
        kept = self._planner.kept(decodes, schedule.lookahead, drafted)
        for place, tree in zip(places, trees, strict=True):
            schedule.attach(place, None if tree is None else tree.first(kept[place]))

    @property
    def points(self) -> FeaturePoints | None:
        """Features that are to be taken of every pass."""
        return self.drafter.points

    @property
    def keeps_kv(self) -> bool:
        """Whether the drafter's KV lies in the blocks: then the feature before each new token is needed."""
        return self.drafter.num_layers > 0

    def extend(
        self, schedule: Schedule, result: RunResult, went_on: Sequence[tuple[int, EngineSequence, int]]
    ) -> None:
        """Tells the drafter what a pass of the target found.

        Args:
            schedule: of the pass.
            result: of the pass.
            went_on: index of each sequence that did not fail, the sequence, which has grown, and the position
                of its first token in the pass.
        """
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
        self.drafter.extend(TargetPass(tuple(extents), result.features))
