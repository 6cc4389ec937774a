"""The seam between steps and the policy that chooses how many drafts they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from engine.sequence import Sequence as EngineSequence
from engine.speculation.tree import DraftTree, size_of


@dataclass(frozen=True, slots=True)
class DraftOutcome:
    """What became of one sequence's drafts in one pass.

    Attributes:
        sequence: whose.
        asked: drafts that there was room for; 0 where none were to be made.
        tree: of the drafts that were verified, without distributions, which are large; None where there was
            nothing to guess.
        path: nodes of the tree that were right, one behind the other.
    """

    sequence: EngineSequence
    asked: int
    tree: DraftTree | None
    path: Sequence[int] = ()

    @property
    def drafted(self) -> int:
        """Drafts that were verified."""
        return size_of(self.tree)

    @property
    def depth(self) -> int:
        """Drafts one behind the other on the longest path."""
        return 0 if self.tree is None else max(self.tree.depths)

    @property
    def accepted(self) -> int:
        """Drafts that were right."""
        return len(self.path)


@dataclass(frozen=True, slots=True)
class PassCost:
    """What a pass of decodes cost.

    Attributes:
        decodes: sequences that decoded.
        nodes: tokens of these, drafts included.
        prompt_tokens: tokens beside them.
        target_s: the target's pass, with verification.
        draft_s: what the drafter took for it, before and after.
    """

    decodes: int
    nodes: int
    prompt_tokens: int
    target_s: float
    draft_s: float


class OffReason(StrEnum):
    """Why a decode is to have no drafts.

    BATCH: drafts would make this batch slower, or no faster. REQUEST: others have drafts, but too many of
    this one's were wrong. ENDING: its next token is its last. PROBE: the step measures what drafts gain.
    """

    BATCH = "batch"
    REQUEST = "request"
    ENDING = "ending"
    PROBE = "probe"


class DraftPlanner(Protocol):
    """Chooses how many drafts each sequence of a step is to have. For each step called in this order."""

    @property
    def off(self) -> Mapping[OffReason, int]:
        """Decodes that were to have no drafts so far, by reason."""
        ...

    def wanted(self, sequences: Sequence[EngineSequence]) -> Sequence[int]:
        """Drafts for each of the step's decodes, 0 included, at most the sequence's `max_drafts`."""
        ...

    def kept(
        self,
        sequences: Sequence[EngineSequence],
        asked: Sequence[int],
        trees: Sequence[DraftTree | None],
    ) -> Sequence[int]:
        """How many of the drafts that were found are verified: of each tree its `first` ones.

        Args:
            sequences: the step's decodes.
            asked: drafts that each had room for.
            trees: that were found for each.
        """
        ...

    def observe(self, cost: PassCost, outcomes: Sequence[DraftOutcome]) -> None:
        """Learns from a pass."""
        ...


class FixedPlanner:
    """The same number of drafts always: what adaptive planning is measured against.

    Args:
        count: drafts of every sequence that may have so many.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    @property
    def off(self) -> Mapping[OffReason, int]:
        """Nothing: no decode is left out."""
        return {}

    def wanted(self, sequences: Sequence[EngineSequence]) -> Sequence[int]:
        """As `DraftPlanner.wanted`."""
        return [min(self._count, sequence.max_drafts) for sequence in sequences]

    def kept(
        self,
        sequences: Sequence[EngineSequence],
        asked: Sequence[int],
        trees: Sequence[DraftTree | None],
    ) -> Sequence[int]:
        """All of them."""
        return [size_of(tree) for tree in trees]

    def observe(self, cost: PassCost, outcomes: Sequence[DraftOutcome]) -> None:
        """Nothing is learnt."""
