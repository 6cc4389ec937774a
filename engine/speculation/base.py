"""The draft-method seam: what the engine asks of a drafter, and what a drafter may ask of the engine.

Hub file. Only protocols and frozen dataclasses belong here.

A step of the engine goes: `propose` for the sequences that decode, one pass of the target over their last
tokens and drafts (and over chunks of contexts), verification, then `extend` with what the pass found. Blocks
are published and handed over only after `extend`, for a drafter's KV may lie in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.config import EngineConfig
from engine.grammar.base import GrammarCompiler
from engine.models.base import DraftedLM
from engine.models.features import FeaturePoints
from engine.sequence import Sequence as EngineSequence
from engine.speculation.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Extent:
    """What a pass computed for one sequence, refused drafts left out.

    Attributes:
        sequence: its `token_ids` hold everything that is known by now, the token just drawn included; its
            `num_computed` counts the tokens whose KV is written.
        first: position of the first token of the pass. Its KV was in the cache already where
            `recomputed`, and neither it nor the drafter's may be written again.
        rows: rows of the pass's features, one for each of the positions `first`, `first` + 1, ...
        recomputed: the first token ran for its features or logits alone.
    """

    sequence: EngineSequence
    first: int
    rows: Sequence[int]
    recomputed: bool


@dataclass(frozen=True, slots=True)
class TargetPass:
    """One pass of the target.

    Attributes:
        extents: one for each sequence that took part and goes on.
        features: [T, width] of the drafter's `points`; None where it has none.
    """

    extents: tuple[Extent, ...]
    features: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Target:
    """What a drafter drafts for.

    Attributes:
        model: the model.
        kv: its pool, with layers behind its own where the drafter keeps KV there.
        settings: of its engine.
        max_model_len: most tokens of prompt and answer together.
        grammars: made the matchers of the sequences' rules; None where there are none.
    """

    model: DraftedLM
    kv: torch.Tensor
    settings: EngineConfig
    max_model_len: int
    grammars: GrammarCompiler | None = None


class Drafter(Protocol):
    """Guesses what comes next. Never trusted: a wrong guess costs time alone.

    Not thread-safe; called from the engine's thread between passes. What it keeps for a sequence lies in
    `sequence.draft_states[self]`, which the engine drops whenever the sequence loses its blocks.

    Attributes:
        points: features that it reads of the target's passes; None for none.
        num_layers: layers of KV that it keeps in the blocks of the target, behind the target's own.
        max_drafts: most drafts of one tree.
    """

    points: FeaturePoints | None
    num_layers: int
    max_drafts: int

    def propose(
        self, sequences: Sequence[EngineSequence], counts: Sequence[int]
    ) -> Sequence[DraftTree | None]:
        """Drafts for sequences of which each lacks the KV of its last token alone.

        Args:
            sequences: which; blocks for the drafts are theirs already.
            counts: most drafts for each, at least 1.

        Returns:
            A tree for each; None where there is nothing to guess.
        """
        ...

    def extend(self, found: TargetPass) -> None:
        """Takes note of a pass: keeps features for the next guesses, writes its KV of the new positions.

        Of blocks that are full now all is written, and of sequences whose blocks are held. The rest may wait.
        """
        ...

    def complete(self, sequence: EngineSequence) -> None:
        """Writes the KV that waits: the sequence's blocks are about to be kept elsewhere."""
        ...

    def carried(self, sequence: EngineSequence) -> bytes:
        """What a worker needs to go on drafting that gets the sequence's KV; empty for nothing."""
        ...

    def adopt(self, sequence: EngineSequence, carried: bytes) -> None:
        """Begins with KV that came from elsewhere, its own in the blocks included.

        Args:
            sequence: lacks the KV of its last token alone.
            carried: as `carried` gave it there.

        Raises:
            ValueError: it is not of this drafter, or of one with other settings.
        """
        ...
