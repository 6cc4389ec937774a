"""Drafts of one sequence: a tree of tokens that may follow. A chain is a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

# Sequences hold trees, and what schedules sequences loads no torch.
if TYPE_CHECKING:
    import torch

MAX_NODES = 64
"""Most tokens of one sequence in a verifying pass, the root included: a row of its mask is an int64."""


@dataclass(frozen=True)
class DraftTree:
    """Candidates for the tokens that follow a sequence's last one.

    Node 0 is the root, the last token, whose KV is still to be written; node i, from 1 on, is the draft
    `token_ids[i - 1]`. Children of one node hold different tokens, in the order in which they are tried.

    Attributes:
        token_ids: the drafts, parents before children; at least one, fewer than `MAX_NODES`.
        parents: for each draft the node that it follows, a smaller number than its own.
        distributions: [len(token_ids), vocab] fp32, what each draft was drawn from; None where no draft was
            drawn but chosen, which is to say with probability 1. Drawn drafts have no siblings.
        confidence: for each draft how likely its drafter takes it to be right, all before it included, so
            never more than for the one that it follows; None where it does not tell. Drawn drafts have none:
            which of them are verified must not depend on what was drawn, or answers would follow another
            distribution than the target's.

    Raises:
        ValueError: not a tree of that form.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    distributions: torch.Tensor | None = None
    confidence: tuple[float, ...] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not 0 < len(self.token_ids) < MAX_NODES or len(self.token_ids) != len(self.parents):
            raise ValueError(f"a tree has 1 to {MAX_NODES - 1} drafts, each with a parent")
        if any(not 0 <= parent <= index for index, parent in enumerate(self.parents)):
            raise ValueError("a draft's parent stands before it")
        if len(set(zip(self.parents, self.token_ids, strict=True))) != len(self.parents):
            raise ValueError("siblings hold different tokens")
        if self.confidence is not None:
            if len(self.confidence) != len(self.token_ids) or self.distributions is not None:
                raise ValueError("each draft has its confidence, or none; drawn ones have none")
            sure = (1.0, *self.confidence)
            pairs = zip(self.confidence, self.parents, strict=True)
            if not all(0.0 <= own <= sure[parent] for own, parent in pairs):
                raise ValueError("confidence is a probability, and no greater than of the draft before")

    @classmethod
    def chain(
        cls,
        token_ids: tuple[int, ...],
        distributions: torch.Tensor | None = None,
        confidence: tuple[float, ...] | None = None,
    ) -> DraftTree:
        """Each draft follows the one before."""
        return cls(token_ids, tuple(range(len(token_ids))), distributions, confidence)

    @property
    def num_nodes(self) -> int:
        """Nodes, the root included."""
        return len(self.token_ids) + 1

    @cached_property
    def is_chain(self) -> bool:
        """Whether each draft follows the one before: then causal order is the tree's order."""
        return self.parents == tuple(range(len(self.parents)))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """For each node how many tokens it stands behind the root."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """For each node its children, in order."""
        children: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for index, parent in enumerate(self.parents):
            children[parent].append(index + 1)
        return tuple(tuple(own) for own in children)

    def child(self, node: int, token_id: int) -> int | None:
        """The child of a node that holds a token; None where there is none."""
        own = (child for child in self.children[node] if self.token_ids[child - 1] == token_id)
        return next(own, None)

    @cached_property
    def visible(self) -> tuple[int, ...]:
        """For each node the bits of the nodes that it sees, itself and its ancestors; as signed int64."""
        bits = [1]
        for index, parent in enumerate(self.parents):
            bits.append(bits[parent] | 1 << (index + 1))
        return tuple(own - (1 << 64) if own >> 63 else own for own in bits)

    def within(self, depth: int) -> DraftTree:
        """The tree of the drafts that are at most `depth` behind the root, at least 1."""
        kept = [index for index in range(len(self.token_ids)) if self.depths[index + 1] <= depth]
        return self if len(kept) == len(self.token_ids) else self._of(kept)

    def first(self, count: int) -> DraftTree | None:
        """The tree of the `count` drafts that are likeliest to be right, or come first; None for 0."""
        if count >= len(self.token_ids):
            return self
        if count <= 0:
            return None
        kept: Sequence[int] = range(count)
        if self.confidence is not None and not self.is_chain:
            # Stable: no draft is likelier than the one it follows, which so comes before it.
            surest = sorted(range(len(self.token_ids)), key=self.confidence.__getitem__, reverse=True)
            kept = sorted(surest[:count])
        return self._of(kept)

    def _of(self, kept: Sequence[int]) -> DraftTree:
        """The tree of some drafts, by index, rising; with each the one that it follows."""
        nodes = {0: 0} | {index + 1: node for node, index in enumerate(kept, start=1)}
        return DraftTree(
            tuple(self.token_ids[index] for index in kept),
            tuple(nodes[self.parents[index]] for index in kept),
            None if self.distributions is None else self.distributions[list(kept)],
            None if self.confidence is None else tuple(self.confidence[index] for index in kept),
        )


def size_of(tree: DraftTree | None) -> int:
    """Drafts of a tree, 0 for none."""
    return 0 if tree is None else len(tree.token_ids)
