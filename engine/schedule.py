"""What runs in one step: the seam between the scheduler and those that run it."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.sequence import Sequence
from engine.speculation.tree import DraftTree


@dataclass(slots=True)
class Schedule:
    """One step's work: `counts[i]` tokens of `sequences[i]`, from its `num_computed` on.

    The first `num_decodes` sequences run the one token that they lack, and drafts behind it; the others
    tokens of their contexts.

    Attributes:
        sequences: each once.
        counts: tokens of each, its drafts included.
        num_tokens: sum of `counts`.
        num_decodes: see above.
        lookahead: drafts that each decode has room for; empty where none speculates.
    """

    sequences: list[Sequence] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    num_tokens: int = 0
    num_decodes: int = 0
    lookahead: list[int] = field(default_factory=list)

    def add(self, sequence: Sequence, count: int) -> None:
        """Puts `count` tokens of a sequence into the step."""
        self.sequences.append(sequence)
        self.counts.append(count)
        self.num_tokens += count

    def attach(self, index: int, drafts: DraftTree | None) -> None:
        """Gives a decode the drafts that were found, at most as many as it has room for."""
        self.sequences[index].drafts = drafts
        count = 1 if drafts is None else drafts.num_nodes
        self.num_tokens += count - self.counts[index]
        self.counts[index] = count
