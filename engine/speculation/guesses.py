"""Which tokens a head guesses, and how sure it is of each.

The model's own draw for a seed and a position is the argmax of log p + noise, the noise keyed by seed,
position and token (`engine.sampling.choice`). A head that wants to guess it does the same with what it takes
for log p: its guesses are then right more often than its likeliest token would be, and as deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from engine.sampling.draws import exponentials, key_tensor
from engine.sampling.keys import Purpose, draw_key
from engine.sampling.rules import TokenRules

_CANDIDATES = 64
"""Likeliest tokens that a draw is guessed among: others win too seldom to be looked at."""


class DraftHead(Protocol):
    """Makes logits, perhaps of a vocabulary of its own."""

    def to_target(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """The model's tokens of what was drafted, shape as given."""
        ...


@dataclass(frozen=True, slots=True)
class Guesses:
    """Of R rows the likeliest tokens, best first.

    Attributes:
        token_ids: [R, N] of the model.
        log_probs: [R, N] fp32, at most 0; -inf for what truncation leaves no chance.
    """

    token_ids: torch.Tensor
    log_probs: torch.Tensor


def likeliest(head: DraftHead, logits: torch.Tensor) -> Guesses:
    """The likeliest token of each row of logits [R, draft vocabulary] fp32: one guess a row."""
    if logits.device.type != "cpu":
        best, draft_ids = logits.max(dim=-1, keepdim=True)
        return Guesses(head.to_target(draft_ids), best - _log_sums(logits))
    # NumPy's needs a tenth of torch's time.
    array = logits.numpy()
    draft_ids = torch.from_numpy(array.argmax(axis=-1)[:, None])
    sums = np.exp(array - array.max(axis=-1, keepdims=True)).sum(axis=-1, keepdims=True)
    return Guesses(head.to_target(draft_ids), torch.from_numpy(-np.log(sums)))


def _log_sums(logits: torch.Tensor) -> torch.Tensor:
    """Logarithms of the sums of exponentiated rows, [R, 1]."""
    if logits.device.type != "cpu":
        return logits.logsumexp(dim=-1, keepdim=True)
    # NumPy's needs a fifth of torch's time.
    array = logits.numpy()
    top = array.max(axis=-1, keepdims=True)
    sums = np.exp(array - top).sum(axis=-1, keepdims=True)
    return torch.from_numpy(top + np.log(sums))


def is_keyed(rules: TokenRules, coupled: bool) -> bool:
    """Whether the model draws with noise that can be known; `coupled` as in `guess`."""
    return not rules.greedy and (coupled or rules.params.own_seed)


def guess(
    head: DraftHead,
    logits: torch.Tensor,
    rules: Sequence[TokenRules],
    ahead: Sequence[int],
    count: int,
    coupled: bool,
) -> Guesses:
    """Guesses what the model draws.

    Args:
        head: whose logits they are.
        logits: [R, draft vocabulary] fp32.
        rules: of each row's sequence.
        ahead: how many tokens lie between the sequence's last one and the one that is guessed.
        count: guesses for each row.
        coupled: whether draws are keyed also of those without a seed of their own. Where they are not, the
            likeliest tokens are the best guesses.
    """
    count = min(count, logits.shape[1])
    drawn = [row for row, rule in enumerate(rules) if is_keyed(rule, coupled)]
    if len(drawn) == len(rules):
        return _drawn(head, logits, rules, ahead, count)
    best, draft_ids = logits.topk(count, dim=-1)
    log_probs = best - _log_sums(logits)
    token_ids = head.to_target(draft_ids)
    if drawn:
        where = torch.tensor(drawn, device=logits.device)
        own = _drawn(head, logits[where], [rules[row] for row in drawn], [ahead[row] for row in drawn], count)
        token_ids[where], log_probs[where] = own.token_ids, own.log_probs
    return Guesses(token_ids, log_probs)


def _drawn(
    head: DraftHead, logits: torch.Tensor, rules: Sequence[TokenRules], ahead: Sequence[int], count: int
) -> Guesses:
    """The same for rows that are drawn.

    Scores are log p + temperature * noise: in that form they become log p as the temperature goes to 0.
    """
    best, draft_ids = logits.topk(min(max(_CANDIDATES, count), logits.shape[1]), dim=-1)
    token_ids = head.to_target(draft_ids)
    keys = [
        draw_key(rule.params.seed, rule.params.choice, rule.position + offset, Purpose.TOKEN)
        for rule, offset in zip(rules, ahead, strict=True)
    ]
    noise = exponentials(key_tensor(keys, logits.device), token_ids).log_().neg_()
    temperatures = torch.tensor([rule.params.temperature for rule in rules], device=logits.device)[:, None]
    scores = best + temperatures * noise
    scores = scores.masked_fill(_cut_off(best, logits, temperatures, rules), -torch.inf)
    scores, order = scores.log_softmax(dim=-1).topk(count, dim=-1)
    return Guesses(token_ids.gather(1, order), scores)


def _cut_off(
    best: torch.Tensor, logits: torch.Tensor, temperatures: torch.Tensor, rules: Sequence[TokenRules]
) -> torch.Tensor:
    """Which candidates, [R, N] best first, the rows' truncation leaves no chance."""
    if not any(rule.truncates for rule in rules):
        return torch.zeros_like(best, dtype=torch.bool)
    device, params = best.device, [rule.params for rule in rules]
    whole = _log_sums(logits / temperatures)
    probs = torch.exp(best / temperatures - whole)
    top_k = torch.tensor([own.top_k or best.shape[1] for own in params], device=device)[:, None]
    top_p = torch.tensor([own.top_p for own in params], device=device)[:, None]
    min_p = torch.tensor([own.min_p for own in params], device=device)[:, None]
    cut = torch.arange(best.shape[1], device=device) >= top_k
    cut = cut | (probs < min_p * probs[:, :1])
    left = probs.masked_fill(cut, 0.0)
    # Top-p is of what the others leave; where they cut nothing off, all of the vocabulary is left.
    left /= torch.where(cut.any(dim=-1, keepdim=True), left.sum(dim=-1, keepdim=True), 1.0)
    cut |= left.cumsum(dim=-1) - left >= top_p
    cut[:, 0] = False
    return cut
