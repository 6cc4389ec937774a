"""EAGLE-2's dynamic draft tree (https://arxiv.org/abs/2406.16858, section 4): grown where the head is sure.

Each level's best nodes, by the product of probabilities along their paths, are expanded; in the end the best
of all are taken, as far as they are likely. Since no node is better than its parent, those form a tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.speculation.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that may be taken.

    Attributes:
        token_id: of the node.
        parent: the expanded node that it follows: 0 is the root, i the i-th that was expanded.
        score: log probability of its path.
    """

    token_id: int
    parent: int
    score: float


@dataclass(slots=True)
class GrowingTree:
    """One sequence's tree while it is drafted.

    Attributes:
        size: drafts that are taken in the end.
        room: nodes that can be expanded beside the root.
        least: log probability of a path below which its last node is not taken.
        candidates: in order of being found: parents first.
        expanded: for each expanded node but the root its place in `candidates`.
        visible: for each expanded node the bits of those that it sees.
        level: places in `candidates` of those found last.
    """

    size: int
    room: int
    least: float = float("-inf")
    candidates: list[Candidate] = field(default_factory=list)
    expanded: list[int] = field(default_factory=list)
    visible: list[int] = field(default_factory=lambda: [1])
    level: list[int] = field(default_factory=list)

    def add(
        self, parents: Sequence[int], token_ids: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]
    ) -> None:
        """A level of candidates.

        Args:
            parents: expanded nodes, those of the last `expand`, or the root.
            token_ids: of the children of each, best first.
            log_probs: of these.
        """
        self.level = list(range(len(self.candidates), len(self.candidates) + sum(map(len, token_ids))))
        for parent, tokens, logs in zip(parents, token_ids, log_probs, strict=True):
            so_far = self.candidates[self.expanded[parent - 1]].score if parent else 0.0
            for token_id, log_prob in zip(tokens, logs, strict=True):
                self.candidates.append(Candidate(token_id, parent, so_far + min(log_prob, 0.0)))

    def expand(self, width: int) -> list[int]:
        """Expands the best of the last level, at most `width`: their places in `candidates`.

        One that will not be taken is not expanded, for nothing that follows it will be.
        """
        taken = set(self._best())
        found = sorted((i for i in self.level if i in taken), key=lambda i: -self.candidates[i].score)
        chosen = sorted(found[: min(width, self.room - len(self.expanded))])
        for place in chosen:
            self.expanded.append(place)
            self.visible.append(self.visible[self.candidates[place].parent] | 1 << len(self.expanded))
        return chosen

    def finish(self) -> DraftTree | None:
        """The best candidates, parents first, children of one node best first."""
        taken = sorted(self._best())
        if not taken:
            return None
        nodes = {0: 0}
        for node, place in enumerate(taken, start=1):
            if place in self.expanded:
                nodes[self.expanded.index(place) + 1] = node
        chosen = [self.candidates[place] for place in taken]
        return DraftTree(
            tuple(candidate.token_id for candidate in chosen),
            tuple(nodes[candidate.parent] for candidate in chosen),
            confidence=tuple(math.exp(candidate.score) for candidate in chosen),
        )

    def _best(self) -> list[int]:
        """Places of the candidates that would be taken now. Among equals the first found: parents first."""
        order = sorted(range(len(self.candidates)), key=lambda i: -self.candidates[i].score)
        scores = ((i, self.candidates[i].score) for i in order[: self.size])
        return [i for i, score in scores if score >= self.least and score > float("-inf")]
