"""Prompt lookup: what followed the last tokens when they came before, in prompt or answer.

The longest suffix that came before counts, from `prompt_lookup_max` down to `prompt_lookup_min` tokens, and
of its occurrences the latest (Saxena, 2023, "Prompt lookup decoding"). A loop is followed on: a
continuation that reaches the text's end goes over its own drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.models.features import FeaturePoints
from engine.sequence import Sequence as EngineSequence
from engine.speculation.base import Drafter, Target, TargetPass
from engine.speculation.config import SpeculationConfig
from engine.speculation.ngrams import NgramIndex
from engine.speculation.settings import check_chain, lookup_range, refuse_carried, refuse_model
from engine.speculation.tree import DraftTree

NEEDS_MODEL = False


class _PromptLookup:
    """Implements `engine.speculation.base.Drafter`. A sequence's state is the index of its text."""

    points: FeaturePoints | None = None
    num_layers = 0

    def __init__(self, shortest: int, longest: int, max_drafts: int) -> None:
        self.max_drafts = max_drafts
        self._shortest = shortest
        self._longest = longest

    def propose(
        self, sequences: Sequence[EngineSequence], counts: Sequence[int]
    ) -> Sequence[DraftTree | None]:
        """See `engine.speculation.base.Drafter`."""
        return [self._guess(*pair) for pair in zip(sequences, counts, strict=True)]

    def extend(self, found: TargetPass) -> None:
        """Nothing is kept of a pass: the tokens are the sequence's own."""

    def complete(self, sequence: EngineSequence) -> None:
        """Nothing: it keeps no KV in the blocks."""

    def carried(self, sequence: EngineSequence) -> bytes:
        """Nothing: the tokens tell it all."""
        return b""

    def adopt(self, sequence: EngineSequence, carried: bytes) -> None:
        """See `engine.speculation.base.Drafter`."""
        refuse_carried(carried)

    def _guess(self, sequence: EngineSequence, count: int) -> DraftTree | None:
        index = sequence.draft_states.get(self)
        if not isinstance(index, NgramIndex):
            index = sequence.draft_states[self] = NgramIndex(self._shortest, self._longest)
        index.extend(sequence.token_ids[len(index) :])
        drafts = index.continuation(min(count, self.max_drafts))
        return DraftTree.chain(drafts) if drafts else None


def create(config: SpeculationConfig, target: Target) -> Drafter:
    """The drafter; ValueError for settings out of bounds."""
    refuse_model(config)
    check_chain(config)
    return _PromptLookup(*lookup_range(config), config.num_speculative_tokens)
