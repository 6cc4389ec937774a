"""What the sampling parameters of one sequence make of the tokens it has so far.

All of it is a pure function of (parameters, prompt, answer so far): `advance` and `rollback` only keep it up
without starting over. So nothing has to be handed over, saved at a preemption or rebuilt in a special way
after a failover, and drafts can be tried and taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from engine.api import SamplingParams
from engine.grammar.base import GrammarMatcher
from engine.sampling.counts import TokenCounts
from engine.sampling.keys import DrawKey, Purpose, draw_key

Ids = npt.NDArray[np.int64]

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: fp32 could not tell their distribution from the argmax."""


def is_greedy(params: SamplingParams) -> bool:
    """Whether the row takes the most likely token, the lowest id among equals."""
    return params.temperature < GREEDY_BELOW or params.top_k == 1


class TokenRules:
    """Rules for the next token of one sequence.

    Args:
        params: the sequence's; `engine.sampling.limits.check` holds.
        prompt_token_ids: its prompt, resumed tokens not included.
        answer_token_ids: its answer so far.
        eos_token_ids: the model's.
        vocab_size: the model's.
        matcher: at the start of the answer, where `params` has a grammar.

    Raises:
        GrammarError: the answer so far does not match the grammar.

    Attributes:
        params: as given.
        matcher: as given, advanced.
        position: index in the answer of the next token: the counter of its draw.
        greedy: the most likely token is taken.
        truncates: some tokens may be cut off before the draw.
        edits: some logits may have to be changed before anything else.
        plain: greedy, never edits, reports nothing: the best logit is all that is to be found out.
        allowed_ids: the only ids that may be drawn; None for all.
        bias_ids, bias_values: what is added to which logits.
        counts: tokens that penalties touch; None without penalties.
    """

    __slots__ = (
        "_answer",
        "_bad_words",
        "_banned_ids",
        "_edits_always",
        "_prompt_set",
        "_stop_ids",
        "allowed_ids",
        "bias_ids",
        "bias_values",
        "counts",
        "greedy",
        "matcher",
        "params",
        "plain",
        "position",
        "truncates",
    )

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        answer_token_ids: Sequence[int],
        eos_token_ids: frozenset[int],
        vocab_size: int,
        matcher: GrammarMatcher | None = None,
    ) -> None:
        self.params = params
        self.matcher = matcher
        self.position = 0
        self.greedy = is_greedy(params)
        self.truncates = (
            0 < params.top_k < vocab_size
            or params.top_p < 1.0
            or params.min_p > 0.0
            or params.typical_p < 1.0
        )
        self.allowed_ids = _ids(params.allowed_token_ids) if params.allowed_token_ids else None
        self.bias_ids = np.array([token_id for token_id, _ in params.logit_bias], dtype=np.int64)
        self.bias_values = np.array([value for _, value in params.logit_bias], dtype=np.float32)
        self._banned_ids = _ids({words[0] for words in params.bad_words if len(words) == 1})
        self._bad_words = tuple(words for words in params.bad_words if len(words) > 1)
        stops = eos_token_ids | params.stop_token_ids
        self._stop_ids = _ids(token_id for token_id in stops if token_id < vocab_size)
        repeats = params.repetition_penalty != 1.0
        self._prompt_set = frozenset(prompt_token_ids) if repeats else frozenset()
        penalised = repeats or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self.counts = TokenCounts(self._prompt_set) if penalised else None
        # Kept only where something looks back at it.
        self._answer: list[int] | None = [] if penalised or self._bad_words else None
        self._edits_always = (
            matcher is not None
            or self.allowed_ids is not None
            or bool(params.logit_bias or params.bad_words)
            or penalised
        )
        self.plain = (
            self.greedy and not self._edits_always and params.min_tokens == 0 and params.logprobs is None
        )
        for token_id in answer_token_ids:
            self.advance(token_id)

    @property
    def edits(self) -> bool:
        """See the class."""
        return self._edits_always or self.position < self.params.min_tokens

    @property
    def key(self) -> DrawKey:
        """Key of the next token's draw."""
        return draw_key(self.params.seed, self.params.choice, self.position, Purpose.TOKEN)

    @property
    def grammar_complete(self) -> bool:
        """Whether the answer matches the grammar as it is, and nothing can be added to it but an EOS."""
        return self.matcher is not None and self.matcher.is_complete

    def advance(self, token_id: int) -> None:
        """The answer grows by one token. Raises GrammarError, changing nothing, where none of it may."""
        if self.matcher is not None:
            self.matcher.advance(token_id)
        self.position += 1
        if self._answer is not None:
            self._answer.append(token_id)
            if self.counts is not None:
                self.counts.add(token_id)

    def rollback(self, count: int) -> None:
        """The answer loses its last `count` tokens."""
        if self.matcher is not None:
            self.matcher.rollback(count)
        self.position -= count
        if self._answer is not None:
            for _ in range(count):
                token_id = self._answer.pop()
                if self.counts is not None:
                    self.counts.remove(token_id, token_id in self._prompt_set)

    def forbidden_ids(self) -> list[int]:
        """Tokens that cannot come next: stops that come too early, and ends of bad words."""
        forbidden: list[int] = self._banned_ids.tolist()
        # A complete answer can only end, however short it is.
        if self.position < self.params.min_tokens and not self.grammar_complete:
            forbidden += self._stop_ids.tolist()
        for words in self._bad_words:
            before = len(words) - 1
            # As vLLM: only the answer counts, the prompt may end with the beginning of a bad word.
            if self._answer is not None and tuple(self._answer[-before:]) == words[:-1]:
                forbidden.append(words[-1])
        return forbidden


def _ids(token_ids: Iterable[int]) -> Ids:
    return np.array(sorted(token_ids), dtype=np.int64)
