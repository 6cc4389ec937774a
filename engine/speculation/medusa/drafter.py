"""Drafts with Medusa heads. Implements `engine.speculation.base.Drafter`.

The feature of the last token but one, what the LM head drew the last token from, is all that the heads read.
Each guesses one position, whatever comes before it, so a static tree says which guesses are combined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.models.features import FeaturePoints
from engine.sequence import Sequence as EngineSequence
from engine.speculation.base import TargetPass
from engine.speculation.carried import pack_feature, unpack_feature
from engine.speculation.guesses import guess
from engine.speculation.medusa.choices import Choice
from engine.speculation.medusa.heads import MedusaHeads
from engine.speculation.tree import DraftTree


@dataclass(frozen=True, slots=True)
class MedusaState:
    """Of one sequence: the model's feature, [H], of the last of its first `computed` tokens."""

    feature: torch.Tensor
    computed: int


class MedusaDrafter:
    """See the module.

    Args:
        heads: of the model.
        choices: nodes of the tree, parents before children.
        embedding: of the model, [V, H]: of the type and on the device of its features.
        coupled: as `engine.speculation.guesses.guess`.
    """

    num_layers = 0

    def __init__(
        self, heads: MedusaHeads, choices: Sequence[Choice], embedding: torch.Tensor, coupled: bool
    ) -> None:
        self.points: FeaturePoints | None = FeaturePoints(final=True)
        self.max_drafts = len(choices)
        self._heads = heads
        self._choices = tuple(choices)
        self._embedding = embedding
        self._coupled = coupled

    @torch.inference_mode()
    def extend(self, found: TargetPass) -> None:
        """Keeps the features that the next guesses need."""
        if not found.extents:
            return
        assert found.features is not None
        ends = torch.tensor([extent.rows[-1] for extent in found.extents], device=found.features.device)
        for extent, feature in zip(found.extents, found.features.index_select(0, ends), strict=True):
            extent.sequence.draft_states[self] = MedusaState(feature, extent.first + len(extent.rows))

    @torch.inference_mode()
    def propose(
        self, sequences: Sequence[EngineSequence], counts: Sequence[int]
    ) -> Sequence[DraftTree | None]:
        """Drafts of the sequences whose feature is known."""
        trees: list[DraftTree | None] = [None] * len(sequences)
        ready: list[int] = []
        features: list[torch.Tensor] = []
        for index, sequence in enumerate(sequences):
            state = sequence.draft_states.get(self)
            if isinstance(state, MedusaState) and state.computed == sequence.num_tokens - 1:
                ready.append(index)
                features.append(state.feature)
        if ready:
            most = max(counts[index] for index in ready)
            candidates = self._candidates(
                torch.stack(features), [sequences[index] for index in ready], self._choices[:most]
            )
            for index, own in zip(ready, candidates, strict=True):
                trees[index] = _tree(self._choices[: counts[index]], own)
        return trees

    def complete(self, sequence: EngineSequence) -> None:
        """Nothing: it keeps no KV in the blocks."""

    def carried(self, sequence: EngineSequence) -> bytes:
        """The model's feature of the last token whose KV is written, [H]; empty if not known."""
        state = sequence.draft_states.get(self)
        return pack_feature(state.feature) if isinstance(state, MedusaState) else b""

    def adopt(self, sequence: EngineSequence, carried: bytes) -> None:
        """See `engine.speculation.base.Drafter`. Without a feature drafting begins at the next token."""
        if carried:
            feature = unpack_feature(carried, self._embedding.shape[1], self._embedding)
            sequence.draft_states[self] = MedusaState(feature, sequence.num_computed)

    def _candidates(
        self, features: torch.Tensor, sequences: Sequence[EngineSequence], choices: Sequence[Choice]
    ) -> list[list[list[int | None]]]:
        """For each sequence and head the candidates, best first; None for what can never be drawn.

        Args:
            features: [R, H], of the sequences.
            sequences: whose rules the guesses follow.
            choices: that they are for.
        """
        rules = [sequence.rules for sequence in sequences]
        found: list[list[list[int | None]]] = [[] for _ in sequences]
        for ahead in range(max(map(len, choices))):
            width = 1 + max(choice[ahead] for choice in choices if len(choice) > ahead)
            logits = self._heads.logits(ahead, features)
            guesses = guess(self._heads, logits, rules, [ahead] * len(rules), width, self._coupled)
            rows = zip(found, guesses.token_ids.tolist(), guesses.log_probs.tolist(), strict=True)
            for own, token_ids, log_probs in rows:
                pairs = zip(token_ids, log_probs, strict=True)
                own.append([token_id if log_prob > -torch.inf else None for token_id, log_prob in pairs])
        return found


def _tree(choices: Sequence[Choice], candidates: list[list[int | None]]) -> DraftTree | None:
    """The nodes for which there are candidates all the way."""
    nodes: dict[Choice, int] = {(): 0}
    token_ids: list[int] = []
    parents: list[int] = []
    for choice in choices:
        of_head = candidates[len(choice) - 1]
        token_id = of_head[choice[-1]] if choice[-1] < len(of_head) else None
        parent = nodes.get(choice[:-1])
        if token_id is None or parent is None:
            continue
        nodes[choice] = len(nodes)
        token_ids.append(token_id)
        parents.append(parent)
    return DraftTree(tuple(token_ids), tuple(parents)) if token_ids else None
