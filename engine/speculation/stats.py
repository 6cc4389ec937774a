"""What a speculating engine tells of itself; crosses the engine's boundary with `engine.api.EngineStats`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftBatches:
    """Passes whose decodes numbered from `decodes` to less than twice as many.

    Attributes:
        decodes: a power of 2.
        passes: so many.
        sequences: their decodes in all.
        asked: drafts that were wanted for these in all.
    """

    decodes: int
    passes: int
    sequences: int
    asked: int


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Totals of a speculating engine, over its passes that decoded.

    Attributes:
        passes: decodes in them: a pass of two sequences counts twice.
        drafted_tokens: drafts verified.
        reached_by_position: passes whose drafts, on their longest path, went so far; by position from 0, what
            lies behind the last counted there.
        accepted_by_position: passes in which the draft there was right.
        passes_by_accepted: passes by the number of drafts that were right, from 0 on.
        batches: what was asked for, by size of the batch, ascending.
        draft_s: time of the drafter.
        pass_s: time of the target's passes, verification included.
        off: decodes that were to have no drafts, by reason (`engine.speculation.planner.OffReason`).
    """

    passes: int
    drafted_tokens: int
    reached_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]
    passes_by_accepted: tuple[int, ...]
    batches: tuple[DraftBatches, ...]
    draft_s: float
    pass_s: float
    off: tuple[tuple[str, int], ...]

    @property
    def accepted_tokens(self) -> int:
        """Drafts that were right."""
        return sum(self.accepted_by_position)
