"""Which drafter guesses for which request: the deployment's own, or one that needs no model, as requests ask.

A drafter whose KV lies in the blocks takes note of every sequence, whoever guesses for it: blocks are shared,
and one without that KV would make worse guesses of others' answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.models.features import FeaturePoints
from engine.sequence import Sequence as EngineSequence
from engine.speculation.base import Drafter, TargetPass
from engine.speculation.config import AS_DEPLOYED
from engine.speculation.registry import NONE
from engine.speculation.tree import DraftTree


class Drafters:
    """The drafters of one engine.

    Args:
        own: the deployment's; None where it has none.
        method: its name; "none" for none.
        others: by method, those that requests may choose as well; they draft chains.
        branching: whether the deployment's drafts trees.
        may_decline: whether requests may choose "none".

    Attributes:
        own: as given.
        methods: what requests may name, the deployment's method first.
        points: features that are to be taken of every pass.
        max_drafts: most drafts of one tree of any of them, 0 where there are none.
        keeps_kv: whether the KV of the deployment's drafter lies in the blocks.
        in_use: whether there was ever anybody to draft for.
    """

    def __init__(
        self,
        own: Drafter | None,
        method: str,
        others: Mapping[str, Drafter] | None = None,
        *,
        branching: bool = False,
        may_decline: bool = True,
    ) -> None:
        self.own = own
        self._by_method: dict[str, Drafter | None] = {method: own, **(others or {})}
        if may_decline:
            self._by_method[NONE] = None
        self._method = method
        self._branching = own if branching else None
        self._drafters = [drafter for drafter in self._by_method.values() if drafter is not None]
        self.methods = tuple(self._by_method)
        self.points: FeaturePoints | None = None if own is None else own.points
        self.max_drafts = max((drafter.max_drafts for drafter in self._drafters), default=0)
        self.keeps_kv = own is not None and own.num_layers > 0
        self.in_use = own is not None

    def assign(self, sequence: EngineSequence) -> None:
        """Gives a sequence the drafter that its request asks for; none to one that holds: it has no drafts.

        Raises:
            ValueError: there is no such method here; the message names those that there are.
        """
        if sequence.hold:
            return
        asked = sequence.request.speculation or AS_DEPLOYED
        method = asked.method or self._method
        if method not in self._by_method:
            raise ValueError(
                f"speculation.method is {method!r}, but must be one of {', '.join(self.methods)} here"
            )
        drafter = sequence.drafter = self._by_method[method]
        self.in_use |= drafter is not None
        sequence.max_drafts = 0 if drafter is None else drafter.max_drafts
        depth = asked.num_speculative_tokens
        if depth is not None and drafter is not self._branching:
            sequence.max_drafts = min(sequence.max_drafts, depth)

    def propose(
        self, sequences: Sequence[EngineSequence], counts: Sequence[int]
    ) -> Sequence[DraftTree | None]:
        """As `Drafter.propose`, each sequence by its own drafter and as deep as its request allows."""
        trees: list[DraftTree | None] = [None] * len(sequences)
        for drafter in self._drafters:
            places = [place for place, sequence in enumerate(sequences) if sequence.drafter is drafter]
            if not places:
                continue
            own = [sequences[place] for place in places]
            found = drafter.propose(own, [counts[place] for place in places])
            for place, tree in zip(places, found, strict=True):
                trees[place] = tree if tree is None else _shortened(tree, sequences[place])
        return trees

    def extend(self, found: TargetPass) -> None:
        """As `Drafter.extend`, for each drafter with the sequences that concern it."""
        for drafter in self._drafters:
            if self._follows_all(drafter):
                drafter.extend(found)
                continue
            extents = tuple(extent for extent in found.extents if extent.sequence.drafter is drafter)
            # The deployment's own is told of every pass, for it may do its work in portions.
            if extents or drafter is self.own:
                drafter.extend(TargetPass(extents, None if drafter.points is None else found.features))

    def complete(self, sequence: EngineSequence) -> None:
        """As `Drafter.complete`, of the deployment's own: the others keep nothing in the blocks."""
        if self.own is not None:
            self.own.complete(sequence)

    def carried(self, sequence: EngineSequence) -> bytes:
        """As `Drafter.carried`, of the deployment's own: the others carry nothing over."""
        return b"" if self.own is None else self.own.carried(sequence)

    def adopt(self, sequence: EngineSequence, carried: bytes) -> None:
        """As `Drafter.adopt`, for the deployment's own where the sequence concerns it."""
        own = self.own
        if own is not None and (self._follows_all(own) or sequence.drafter is own):
            own.adopt(sequence, carried)

    def _follows_all(self, drafter: Drafter) -> bool:
        return self.keeps_kv and drafter is self.own


NO_DRAFTERS = Drafters(None, NONE)
"""Of an engine that never speculates."""


def _shortened(tree: DraftTree, sequence: EngineSequence) -> DraftTree | None:
    asked = sequence.request.speculation
    if asked is None or asked.num_speculative_tokens is None:
        return tree
    return tree.within(asked.num_speculative_tokens)
