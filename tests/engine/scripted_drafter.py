"""A drafter that knows the answer, and is wrong on purpose; it also checks what the engine tells drafters."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from engine.models.features import FeaturePoints
from engine.sequence import Sequence as EngineSequence
from engine.speculation.base import TargetPass
from engine.speculation.tree import DraftTree


class ScriptedDrafter:
    """Proposes trees in which the true next tokens stand with some likelihood. Deterministic.

    Args:
        answer_of: the whole answer of a sequence, prompt not included.
        vocab_size: tokens to choose wrong ones from.
        right: likelihood that a node's true follower is among its children.
        branches: most children of a node; 1 makes chains.
        forbidden: a token that is never proposed.
    """

    points: FeaturePoints | None = None
    num_layers = 0
    max_drafts = 16

    def __init__(
        self,
        answer_of: Callable[[EngineSequence], Sequence[int]],
        vocab_size: int,
        right: float = 0.7,
        branches: int = 1,
        forbidden: int = -1,
    ) -> None:
        self._answer_of = answer_of
        self._vocab_size = vocab_size
        self._right = right
        self._branches = branches
        self._forbidden = forbidden
        self.proposed = 0
        self.told: dict[str, int] = {}

    def propose(
        self, sequences: Sequence[EngineSequence], counts: Sequence[int]
    ) -> Sequence[DraftTree | None]:
        """As `Drafter.propose`."""
        return [self._tree(*pair) for pair in zip(sequences, counts, strict=True)]

    def extend(self, found: TargetPass) -> None:
        """As `Drafter.extend`: positions come in order, each once, until the sequence loses its blocks."""
        for extent in found.extents:
            sequence = extent.sequence
            if self in sequence.draft_states:
                assert extent.first == self.told[sequence.request_id]
            sequence.draft_states[self] = True
            self.told[sequence.request_id] = extent.first + len(extent.rows)
            assert sequence.num_computed == self.told[sequence.request_id]
            assert len(set(extent.rows)) == len(extent.rows)

    def complete(self, sequence: EngineSequence) -> None:
        """Nothing: it keeps no KV in the blocks."""

    def carried(self, sequence: EngineSequence) -> bytes:
        """Nothing: the tokens tell it all."""
        return b""

    def adopt(self, sequence: EngineSequence, carried: bytes) -> None:
        """See `engine.speculation.base.Drafter`."""
        assert not carried

    def _tree(self, sequence: EngineSequence, count: int) -> DraftTree | None:
        assert sequence.num_uncomputed == 1
        draw = random.Random(f"{sequence.request_id} {sequence.num_tokens}")
        count = draw.randint(0, min(count, self.max_drafts))
        truth = list(self._answer_of(sequence)[sequence.next_index :])
        token_ids: list[int] = []
        parents: list[int] = []
        # Nodes whose path is the answer so far, and how long that path is.
        on_the_way = {0: 0}
        for node in range(count):
            parent = node if self._branches == 1 else draw.randint(0, node)
            depth = on_the_way.get(parent)
            taken = {token for token, other in zip(token_ids, parents, strict=True) if other == parent}
            follower = truth[depth] if depth is not None and depth < len(truth) else None
            token = follower if draw.random() < self._right else draw.randrange(self._vocab_size)
            if token is None or token in taken or token == self._forbidden or len(taken) >= self._branches:
                break
            if token == follower and depth is not None:
                on_the_way[node + 1] = depth + 1
            token_ids.append(token)
            parents.append(parent)
        self.proposed += len(token_ids)
        return DraftTree(tuple(token_ids), tuple(parents)) if token_ids else None
