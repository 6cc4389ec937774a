"""The verification seam: what a pass's logits make of the drafts that it ran on.

Hub file. Only protocols and immutable values belong here; those that each pass makes for each sequence are
tuples, for a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol

import torch

from engine.api import FinishReason, TokenLogprobs
from engine.sampling.rules import TokenRules
from engine.sampling.sampler import Sampled
from engine.speculation.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where answers end, beside what their parameters say; arguments of `engine.stopping.finish_reason`.

    Attributes:
        eos_token_ids: the model's.
        max_model_len: most tokens of prompt and answer together.
    """

    eos_token_ids: frozenset[int]
    max_model_len: int


class Pending(NamedTuple):
    """A sequence that waits for its next tokens. Without drafts it is a tree of one node.

    Attributes:
        rules: for its next token.
        num_tokens: of prompt and answer so far.
        tree: drafts that its pass ran on; None for none.
        row: of the logits of the root, its last token; node i's are in row `row` + i.
    """

    rules: TokenRules
    num_tokens: int
    tree: DraftTree | None
    row: int


class FailureCause(Enum):
    """Why a sequence has no next token.

    NOT_NUMBERS: its logits are NaN or infinite, so its KV may be too. STUCK: its parameters leave no token.
    GRAMMAR: the grammar's library refused the token that was chosen.
    """

    NOT_NUMBERS = auto()
    STUCK = auto()
    GRAMMAR = auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """A sequence cannot go on; `message` says more where the cause alone does not."""

    cause: FailureCause
    message: str = ""


class Verified(NamedTuple):
    """What a pass gave one sequence.

    Attributes:
        path: accepted nodes, each a child of the one before, the first a child of the root.
        token_ids: those of the path, and behind them one more: the correction where a draft was refused, the
            bonus where none was left. That one is missing where the path's last token ends the sequence, or
            there is a failure. The sequence's rules have advanced by all of them.
        logprobs: one for each of `token_ids`; None where nobody asks.
        finish_reason: why the last of `token_ids` is the sequence's last; None where it is not.
        failure: what would have come next failed; what came before holds.
    """

    path: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: FinishReason | None
    failure: Failure | None


class Place(NamedTuple):
    """A node whose next token is to be chosen.

    Attributes:
        row: of its logits.
        rules: for that token, on the prefix that ends with this node.
        tree: of the sequence; None where it has none.
        node: in the tree; 0 where there is none.
    """

    row: int
    rules: TokenRules
    tree: DraftTree | None
    node: int

    @property
    def drafts(self) -> list[tuple[int, torch.Tensor | None]]:
        """Drafts of that token, in the order in which they are to be tried.

        Each with what it was drawn from, [vocab] fp32; None where it was chosen.
        """
        tree = self.tree
        if tree is None:
            return []
        drawn_from = tree.distributions
        return [
            (tree.token_ids[child - 1], None if drawn_from is None else drawn_from[child - 1])
            for child in tree.children[self.node]
        ]


class Chooser(Protocol):
    """Chooses the token that follows each of many nodes: what one verification rule differs by from another.

    Attributes:
        lossless: tokens come with the target's own distribution, whatever the drafts.
    """

    lossless: bool

    def choose(self, logits: torch.Tensor, places: Sequence[Place]) -> Sampled:
        """Chooses a token for each place, a draft's where that draft is accepted.

        Rows whose rules are `plain` take the best logit: they may be asked of nodes that nothing reaches.

        Args:
            logits: [R, vocab] fp32, of the model; left as they are.
            places: nodes; the outcome's rows are theirs. The rules are left as they are.
        """
        ...
