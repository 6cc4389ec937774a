"""Walks trees of drafts: one choice for each depth for all sequences that are still under way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.api import FinishReason, TokenLogprobs
from engine.grammar.base import GrammarError
from engine.sampling.sampler import Sampled
from engine.speculation.verification.base import (
    Bounds,
    Chooser,
    Failure,
    FailureCause,
    Pending,
    Place,
    Verified,
)
from engine.stopping import finish_reason


class Verifier:
    """Makes tokens of a pass's logits, with drafts or without: sampling has no other way.

    A token chosen at a node is emitted; where it is a child's token too, that child is accepted and the walk
    goes on there, on rules that have advanced. So whatever the rules say holds at each position, for the
    prefix that it really has.

    Args:
        chooser: the rule.
        bounds: where sequences end, beside what their own parameters say.
    """

    def __init__(self, chooser: Chooser, bounds: Bounds) -> None:
        self._chooser = chooser
        self._bounds = bounds

    @property
    def lossless(self) -> bool:
        """See `engine.speculation.verification.base.Chooser`."""
        return self._chooser.lossless

    def verify(self, logits: torch.Tensor, pending: Sequence[Pending]) -> list[Verified]:
        """Chooses the next tokens of sequences.

        Args:
            logits: [R, vocab] fp32, of the model; left as they are. May have further rows.
            pending: sequences, whose rules advance by the tokens that they get. Whatever is raised, the
                rules are as they were then.

        Returns:
            What each got: a token at least, or a failure.
        """
        if not pending:
            return []
        if all(each.tree is None for each in pending):
            return self._verify_roots(logits, pending)
        walks = [_Walk(each, self._bounds) for each in pending]
        try:
            walking = walks
            while walking:
                places: list[Place] = []
                starts: list[int] = []
                for walk in walking:
                    starts.append(len(places))
                    places += walk.places()
                chosen = _Chosen(self._chooser.choose(logits, places))
                for walk, start in zip(walking, starts, strict=True):
                    walk.follow(chosen, start)
                walking = [walk for walk in walking if not walk.is_over]
        except BaseException:
            for walk in walks:
                walk.take_back()
            raise
        return [walk.outcome() for walk in walks]

    def _verify_roots(self, logits: torch.Tensor, pending: Sequence[Pending]) -> list[Verified]:
        """As `verify`, where nobody has drafts: then a choice for each root is all, and no way is walked."""
        chosen = _Chosen(self._chooser.choose(logits, [Place(p.row, p.rules, None, 0) for p in pending]))
        token_ids, logprobs, bounds = chosen.token_ids, chosen.logprobs, self._bounds
        fails = chosen.has_failures
        outcomes: list[Verified] = []
        try:
            for index, (rules, num_tokens, _, _) in enumerate(pending):
                token_id, params = token_ids[index], rules.params
                asked = params.logprobs is not None
                failure = chosen.failure(index) if fails else None
                # Looked up first: behind `advance` nothing is raised, so what is in `outcomes` has advanced.
                told = (logprobs[index],) if asked and failure is None else ()
                if failure is None:
                    try:
                        rules.advance(token_id)
                    except GrammarError as error:
                        failure = Failure(FailureCause.GRAMMAR, str(error))
                if failure is not None:
                    outcomes.append(Verified((), (), () if asked else None, None, failure))
                    continue
                reason = finish_reason(
                    params,
                    token_id,
                    rules.position - 1,
                    num_tokens + 1,
                    bounds.eos_token_ids,
                    bounds.max_model_len,
                    rules.matcher is not None and rules.grammar_complete,
                )
                outcomes.append(Verified((), (token_id,), told if asked else None, reason, None))
        except BaseException:
            for each, outcome in zip(pending, outcomes, strict=False):
                each.rules.rollback(len(outcome.token_ids))
            raise
        return outcomes


class _Chosen:
    """A choice, with its failures to look up."""

    def __init__(self, sampled: Sampled) -> None:
        self.token_ids = sampled.token_ids
        self.logprobs = sampled.logprobs
        self._failures = dict.fromkeys(sampled.not_numbers, FailureCause.NOT_NUMBERS)
        self._failures.update(dict.fromkeys(sampled.stuck, FailureCause.STUCK))

    @property
    def has_failures(self) -> bool:
        """Whether any row has no token."""
        return bool(self._failures)

    def failure(self, index: int) -> Failure | None:
        """Why there is no token in a row."""
        cause = self._failures.get(index)
        return None if cause is None else Failure(cause)


class _Walk:
    """One sequence's way from the root of its tree.

    Attributes:
        is_over: nothing is left to choose.
    """

    __slots__ = (
        "_bounds",
        "_failure",
        "_logprobs",
        "_node",
        "_path",
        "_pending",
        "_reason",
        "_tokens",
        "is_over",
    )

    def __init__(self, pending: Pending, bounds: Bounds) -> None:
        self._pending = pending
        self._bounds = bounds
        self._node = 0
        self._path: list[int] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._reason: FinishReason | None = None
        self._failure: Failure | None = None
        self.is_over = False

    def places(self) -> list[Place]:
        """Where tokens are to be chosen now: all nodes at once, where the way there does not matter."""
        own = self._pending
        nodes: Sequence[int] = (self._node,)
        if own.rules.plain and own.tree is not None:
            nodes = range(own.tree.num_nodes)
        return [Place(own.row + node, own.rules, own.tree, node) for node in nodes]

    def follow(self, chosen: _Chosen, start: int) -> None:
        """Goes on as far as the choice for its places tells, the first of which is choice `start`."""
        plain = self._pending.rules.plain
        while not self.is_over:
            self._take(chosen, start + self._node if plain else start)
            if not plain:
                return

    def take_back(self) -> None:
        """Undoes what happened to the rules."""
        if self._tokens:
            self._pending.rules.rollback(len(self._tokens))

    def outcome(self) -> Verified:
        """What came of it."""
        asked = self._pending.rules.params.logprobs is not None
        return Verified(
            path=tuple(self._path),
            token_ids=tuple(self._tokens),
            logprobs=tuple(self._logprobs) if asked else None,
            finish_reason=self._reason,
            failure=self._failure,
        )

    def _take(self, chosen: _Chosen, index: int) -> None:
        self._failure = chosen.failure(index)
        if self._failure is None:
            self._emit(chosen.token_ids[index], chosen.logprobs.get(index))
        if self._failure is not None:
            self.is_over = True

    def _emit(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        rules, tree = self._pending.rules, self._pending.tree
        answer_index = rules.position
        try:
            rules.advance(token_id)
        except GrammarError as error:
            self._failure = Failure(FailureCause.GRAMMAR, str(error))
            return
        self._tokens.append(token_id)
        if logprobs is not None:
            self._logprobs.append(logprobs)
        self._reason = finish_reason(
            rules.params,
            token_id,
            answer_index,
            self._pending.num_tokens + len(self._tokens),
            self._bounds.eos_token_ids,
            self._bounds.max_model_len,
            rules.grammar_complete,
        )
        child = None if tree is None else tree.child(self._node, token_id)
        if child is not None:
            self._path.append(child)
            self._node = child
        self.is_over = child is None or self._reason is not None
