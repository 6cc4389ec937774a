"""What is kept for a sequence between steps, and its drafts while they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.grammar.base import GrammarError
from engine.sequence import Sequence as EngineSequence
from engine.speculation.tree import DraftTree
from engine.speculation.two_model.cache import DraftBlocks
from engine.speculation.verification.base import Bounds
from engine.stopping import finish_reason


@dataclass(slots=True)
class DraftState:
    """Of one sequence, as long as it holds its blocks.

    Attributes:
        blocks: of the draft model's KV.
        computed: leading tokens of the sequence whose KV is there.
        guessed: tokens behind them whose KV is there, too; the sequence may have gone on otherwise.
        step: in which tokens were computed, or blocks given up, last.
        is_broken: what the draft model makes of this sequence is not a number.
    """

    blocks: DraftBlocks
    computed: int = 0
    guessed: list[int] = field(default_factory=list)
    step: int = -1
    is_broken: bool = False

    def settle(self, token_ids: Sequence[int]) -> None:
        """Keeps the KV of what was guessed as far as the sequence went on so."""
        for token_id in self.guessed:
            if token_ids[self.computed : self.computed + 1] != [token_id]:
                break
            self.computed += 1
        self.guessed.clear()


@dataclass(slots=True)
class DraftChain:
    """Drafts of one sequence, whose rules advance by them until `take_back`.

    Attributes:
        place: of the sequence among those that drafts are asked for.
        sequence: whose drafts they are.
        state: its state.
        most: drafts to be made.
        token_ids: drafts so far.
        distributions: what each was drawn from, [vocab]; empty where they are chosen, or nobody asks.
        is_complete: no draft is wanted behind them.
    """

    place: int
    sequence: EngineSequence
    state: DraftState
    most: int
    token_ids: list[int] = field(default_factory=list)
    distributions: list[torch.Tensor] = field(default_factory=list)
    is_complete: bool = False

    def take(self, token_id: int, drawn_from: torch.Tensor | None, bounds: Bounds) -> None:
        """One more draft; the chain is complete where it would be the sequence's last token."""
        rules = self.sequence.rules
        answer_index = rules.position
        try:
            rules.advance(token_id)
        except GrammarError:
            self.is_complete = True
            return
        self.token_ids.append(token_id)
        if drawn_from is not None:
            self.distributions.append(drawn_from)
        reason = finish_reason(
            rules.params,
            token_id,
            answer_index,
            self.sequence.num_tokens + len(self.token_ids),
            bounds.eos_token_ids,
            bounds.max_model_len,
            rules.grammar_complete,
        )
        self.is_complete = reason is not None or len(self.token_ids) == self.most

    def take_back(self) -> None:
        """The sequence's rules are as they were before."""
        if self.token_ids:
            self.sequence.rules.rollback(len(self.token_ids))

    def finish(self) -> DraftTree | None:
        """The drafts; None for none."""
        if not self.token_ids:
            return None
        told = torch.stack(self.distributions) if self.distributions else None
        return DraftTree.chain(tuple(self.token_ids), told)
