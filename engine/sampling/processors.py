"""Changes to logits before a token is chosen from them: masks, bias and penalties.

Each step works on all rows at once, over flat (row, token id) pairs, so that its cost is that of the entries
it changes. Masks come first, and they and the bias before the penalties, as in vLLM: grammar and allowed ids,
logit_bias, min_tokens, bad_words, then repetition, frequency and presence penalty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.grammar.base import GrammarCompiler, GrammarMatcher
from engine.sampling.rules import TokenRules


def edit(logits: torch.Tensor, rules: Sequence[TokenRules], grammars: GrammarCompiler | None) -> None:
    """Changes the logits of rows in place, as their rules say.

    Args:
        logits: [R, vocab] fp32, one row for each of `rules`.
        rules: of the rows.
        grammars: made the matchers, where there are any.
    """
    _mask_grammars(logits, rules, grammars)
    _keep_allowed(logits, rules)
    _add_bias(logits, rules)
    _forbid(logits, rules)
    _penalise(logits, rules)


def _mask_grammars(
    logits: torch.Tensor, rules: Sequence[TokenRules], grammars: GrammarCompiler | None
) -> None:
    rows: list[int] = []
    matchers: list[GrammarMatcher] = []
    for row, rule in enumerate(rules):
        if rule.matcher is not None:
            rows.append(row)
            matchers.append(rule.matcher)
    if not rows:
        return
    assert grammars is not None, "matchers come from a compiler"
    forbidden = torch.from_numpy(~grammars.allowed(matchers)).to(logits.device)
    if len(rows) == len(rules):
        logits.masked_fill_(forbidden, -torch.inf)
    else:
        index = torch.tensor(rows, device=logits.device)
        logits[index] = logits[index].masked_fill_(forbidden, -torch.inf)


def _keep_allowed(logits: torch.Tensor, rules: Sequence[TokenRules]) -> None:
    for row, rule in enumerate(rules):
        if rule.allowed_ids is not None:
            index = torch.from_numpy(rule.allowed_ids).to(logits.device)
            kept = logits[row, index]
            logits[row] = -torch.inf
            logits[row, index] = kept


def _add_bias(logits: torch.Tensor, rules: Sequence[TokenRules]) -> None:
    biased = [(row, rule) for row, rule in enumerate(rules) if len(rule.bias_ids)]
    if biased:
        index = _pairs(logits, [(row, rule.bias_ids) for row, rule in biased])
        values = torch.from_numpy(np.concatenate([rule.bias_values for _, rule in biased]))
        # Each id stands once in a row, so nothing is added twice to one place.
        logits[index] += values.to(logits.device)


def _forbid(logits: torch.Tensor, rules: Sequence[TokenRules]) -> None:
    rows: list[int] = []
    columns: list[int] = []
    for row, rule in enumerate(rules):
        forbidden = rule.forbidden_ids()
        rows += [row] * len(forbidden)
        columns += forbidden
    if rows:
        logits[rows, columns] = -torch.inf


def _penalise(logits: torch.Tensor, rules: Sequence[TokenRules]) -> None:
    penalised = [(row, rule, rule.counts) for row, rule in enumerate(rules) if rule.counts is not None]
    if not penalised:
        return
    index = _pairs(logits, [(row, counts.ids) for row, _, counts in penalised])
    counts = torch.from_numpy(np.concatenate([counts.counts for _, _, counts in penalised]))
    counts = counts.to(logits.device)
    lengths = [len(counts.ids) for _, _, counts in penalised]

    def spread(values: Iterable[float]) -> torch.Tensor:
        entries = np.repeat(np.fromiter(values, dtype=np.float32), lengths)
        return torch.from_numpy(entries).to(logits.device)

    repetition = spread(rule.params.repetition_penalty for _, rule, _ in penalised)
    frequency = spread(rule.params.frequency_penalty for _, rule, _ in penalised)
    presence = spread(rule.params.presence_penalty for _, rule, _ in penalised)
    values = logits[index]
    values = torch.where(values > 0, values / repetition, values * repetition)
    # Penalties near 0 make some infinite, and what is infinite cannot be drawn from.
    values.clamp_(max=torch.finfo(values.dtype).max)
    values -= frequency * counts
    values -= presence * (counts > 0)
    logits[index] = values


def _pairs(
    logits: torch.Tensor, ids_of_rows: Sequence[tuple[int, npt.NDArray[np.int64]]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Index of (row, id) pairs into logits."""
    rows = np.repeat([row for row, _ in ids_of_rows], [len(ids) for _, ids in ids_of_rows])
    columns = np.concatenate([ids for _, ids in ids_of_rows])
    return torch.from_numpy(rows).to(logits.device), torch.from_numpy(columns).to(logits.device)
