"""A target of a few tokens, whose answers can be enumerated, and generation with any rule and drafter."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch

from engine.api import FinishReason, SamplingParams
from engine.sampling.rules import TokenRules
from engine.sampling.sampler import Sampler
from engine.speculation.tree import DraftTree
from engine.speculation.verification.base import Bounds, Pending, Verified
from engine.speculation.verification.registry import create_verifier
from engine.stopping import finish_reason
from tests.engine.sampling_rows import processed

EOS = 0
EOS_IDS = frozenset({EOS})
PROMPT = (1, 2, 1)

Draft = Callable[["SmallTarget", Sequence[int], TokenRules, random.Random], DraftTree | None]


class SmallTarget:
    """Logits that depend on the last two tokens."""

    def __init__(self, vocab_size: int = 6, seed: int = 0, spread: float = 1.2) -> None:
        self.vocab_size = vocab_size
        generator = torch.Generator().manual_seed(seed)
        self._table = torch.randn(vocab_size, vocab_size, vocab_size, generator=generator) * spread

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[vocab] after a prefix."""
        return self._table[token_ids[-2], token_ids[-1]]

    def rows(self, token_ids: Sequence[int], tree: DraftTree | None) -> torch.Tensor:
        """[nodes, vocab] of a pass over a prefix's last token and its drafts."""
        prefixes = [list(token_ids)]
        for token_id, parent in zip(*((tree.token_ids, tree.parents) if tree else ((), ())), strict=True):
            prefixes.append([*prefixes[parent], token_id])
        return torch.stack([self.logits(prefix) for prefix in prefixes])


def rules_for(params: SamplingParams, vocab_size: int) -> TokenRules:
    return TokenRules(params, PROMPT, (), EOS_IDS, vocab_size)


def generate(
    rule: str,
    target: SmallTarget,
    draft: Draft,
    params: Sequence[SamplingParams],
    max_model_len: int = 1000,
) -> tuple[list[tuple[int, ...]], list[Verified]]:
    """Answers of one sequence for each of `params`, verified side by side, and what each pass gave."""
    verifier = create_verifier(rule, Sampler(), Bounds(EOS_IDS, max_model_len))
    answers: list[list[int]] = [[] for _ in params]
    rules = [rules_for(own, target.vocab_size) for own in params]
    randoms = [random.Random(own.seed) for own in params]
    passes: list[Verified] = []
    running = list(range(len(params)))
    while running:
        rows: list[torch.Tensor] = []
        pending: list[Pending] = []
        count = 0
        for index in running:
            tokens = [*PROMPT, *answers[index]]
            tree = draft(target, tokens, rules[index], randoms[index])
            own = target.rows(tokens, tree)
            pending.append(Pending(rules[index], len(tokens), tree, count))
            rows.append(own)
            count += len(own)
        logits = torch.cat(rows)
        before = logits.clone()
        outcomes = verifier.verify(logits, pending)
        assert torch.equal(logits, before), "the logits were changed"
        going: list[int] = []
        for index, outcome in zip(running, outcomes, strict=True):
            assert outcome.failure is None
            assert outcome.token_ids
            answers[index] += outcome.token_ids
            if outcome.finish_reason is None:
                going.append(index)
        passes += outcomes
        running = going
    return [tuple(answer) for answer in answers], passes


def distribution(target: SmallTarget, params: SamplingParams, answer: Sequence[int]) -> torch.Tensor:
    """What the next token's probabilities must be, [vocab] fp64, by formulas of their own."""
    logits = target.logits([*PROMPT, *answer]).double()
    for token_id, bias in params.logit_bias:
        logits[token_id] += bias
    if len(answer) < params.min_tokens:
        logits[[EOS, *params.stop_token_ids]] = -torch.inf
    for words in params.bad_words:
        if list(answer[len(answer) - len(words) + 1 :]) == list(words[:-1]):
            logits[words[-1]] = -torch.inf
    counts = Counter(answer)
    for token_id in {*answer, *PROMPT}:
        value = logits[token_id]
        logits[token_id] = (
            value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        )
    for token_id, count in counts.items():
        logits[token_id] -= params.frequency_penalty * count + params.presence_penalty
    if params.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), target.vocab_size).double()
    return processed(logits, params)


def outcomes(
    target: SmallTarget, params: SamplingParams, answer: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every answer with its probability."""
    for token_id, p in enumerate(distribution(target, params, answer).tolist()):
        if p == 0.0:
            continue
        longer = (*answer, token_id)
        if ends(params, longer):
            yield longer, p
        else:
            yield from ((whole, p * rest) for whole, rest in outcomes(target, params, longer))


def ends(params: SamplingParams, answer: tuple[int, ...]) -> FinishReason | None:
    num_tokens = len(PROMPT) + len(answer)
    return finish_reason(params, answer[-1], len(answer) - 1, num_tokens, EOS_IDS, 1000)


def check_distribution(found: Sequence[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> None:
    """Chi-square: fails one fair sample in a million."""
    counts = Counter(found)
    assert not set(counts) - set(expected), "answers that the target never gives"
    statistic, cells = 0.0, 0
    rare_count, rare_expected = 0.0, 0.0
    for answer, p in expected.items():
        wanted = p * len(found)
        if wanted < 5:
            rare_count += counts[answer]
            rare_expected += wanted
            continue
        cells += 1
        statistic += (counts[answer] - wanted) ** 2 / wanted
    if rare_expected >= 5:
        cells += 1
        statistic += (rare_count - rare_expected) ** 2 / rare_expected
    assert statistic < chi_square_limit(cells - 1), f"{statistic} in {cells} cells"


def chi_square_limit(freedom: int) -> float:
    """Exceeded once in 10**6: Wilson and Hilferty's approximation."""
    if not freedom:
        return 1e-9
    width = 2 / (9 * freedom)
    return freedom * (1 - width + 4.753424 * math.sqrt(width)) ** 3
