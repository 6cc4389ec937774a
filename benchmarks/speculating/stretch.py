"""What decoding gave over some passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from engine.speculation.stats import SpeculationStats


@dataclass(frozen=True, slots=True)
class Stretch:
    """Passes of one engine, added up.

    Attributes:
        tokens: drawn.
        seconds: that took.
        passes: decodes, each sequence of a pass counted.
        drafted: drafts verified.
        reached: passes whose drafts went so far, by position.
        accepted: passes in which the draft there was right.
        chosen: passes by how many drafts were verified in them, from 0 on.
        draft_s: of the seconds, the drafter's.
        off: decodes that were to have no drafts, by reason.
    """

    tokens: int = 0
    seconds: float = 0.0
    passes: int = 0
    drafted: int = 0
    reached: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    chosen: tuple[int, ...] = ()
    draft_s: float = 0.0
    off: tuple[tuple[str, int], ...] = ()

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    @property
    def per_pass(self) -> float:
        """Tokens of a sequence in a pass of the target."""
        return self.tokens / self.passes

    def __add__(self, other: Stretch) -> Stretch:
        reasons = dict(self.off)
        for reason, count in other.off:
            reasons[reason] = reasons.get(reason, 0) + count
        return Stretch(
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            self.passes + other.passes,
            self.drafted + other.drafted,
            _sum(self.reached, other.reached),
            _sum(self.accepted, other.accepted),
            _sum(self.chosen, other.chosen),
            self.draft_s + other.draft_s,
            tuple(reasons.items()),
        )


def step_of(
    tokens: int,
    seconds: float,
    drafted: Sequence[int],
    before: SpeculationStats | None,
    after: SpeculationStats | None,
    passes: int,
) -> Stretch:
    """One step in which `passes` sequences decode.

    Args:
        tokens: drawn in it.
        seconds: that it took.
        drafted: drafts verified of each decode that has a drafter.
        before: the engine's totals before it.
        after: and after it; None where it does not speculate.
        passes: decodes.
    """
    if before is None or after is None:
        return Stretch(tokens, seconds, passes)
    chosen = [0] * (max(drafted, default=0) + 1)
    for count in drafted:
        chosen[count] += 1
    earlier = dict(before.off)
    return Stretch(
        tokens,
        seconds,
        passes,
        after.drafted_tokens - before.drafted_tokens,
        _gained(after.reached_by_position, before.reached_by_position),
        _gained(after.accepted_by_position, before.accepted_by_position),
        tuple(chosen),
        after.draft_s - before.draft_s,
        tuple((reason, count - earlier.get(reason, 0)) for reason, count in after.off),
    )


def _sum(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(left, right, fillvalue=0))


def _gained(after: Sequence[int], before: Sequence[int]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip_longest(after, before, fillvalue=0))
