"""Draws one token for each of many rows at once, from whole or truncated distributions.

The Gumbel-max trick: the argmax of log p - log E, with E exponential, is token i with probability p_i. E is
keyed by row and token id, so no row depends on another and nothing is drawn in any order.

Over a whole vocabulary the logarithms would cost most. An upper bound of -log E that takes no logarithm,
read off the bits of the uniform draw, tells which few tokens can win at all; only theirs are computed. The
bound is within 3 of the truth for every draw there is, so the outcome is that of computing all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from engine.sampling.draws import key_tensor, random_bits, to_uniforms
from engine.sampling.rules import TokenRules
from engine.sampling.truncation import truncate

# Elements that are worked on at a time: what fits a core's cache.
_CHUNK_ELEMENTS = 1 << 18
# A float's bits, read as an integer, are its base-2 logarithm in units of 2**-23, off by at most 0.0861.
_LN2_PER_BIT = math.log(2.0) / (1 << 23)
_EXPONENT_BIAS = 127 * math.log(2.0)
# ln 2 * 0.0861 for the linear interpolation, and ln(E / u), at most ln(16.7), for E = -ln(1 - u) >= u.
_BOUND_SLACK = 3.0


def draw(logits: torch.Tensor, rows: Sequence[int], rules: Sequence[TokenRules]) -> list[int]:
    """Draws a token for some rows.

    Args:
        logits: [R, vocab] fp32; left as they are.
        rows: which to draw for; each has a finite best.
        rules: one for each of `rows`; none is greedy.
    """
    tokens = [0] * len(rows)
    size = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    for truncated in (False, True):
        group = [index for index, rule in enumerate(rules) if rule.truncates is truncated]
        for start in range(0, len(group), size):
            part = group[start : start + size]
            chosen = [rules[index] for index in part]
            scores = _scores(logits, [rows[index] for index in part], chosen)
            drawn = _from_truncated(scores, chosen) if truncated else _from_whole(scores, chosen)
            for index, token_id in zip(part, drawn, strict=True):
                tokens[index] = token_id
    return tokens


def _scores(logits: torch.Tensor, rows: list[int], rules: Sequence[TokenRules]) -> torch.Tensor:
    """Log probabilities up to a constant, [len(rows), vocab]: the best of each row is 0."""
    scores = logits.index_select(0, torch.tensor(rows, device=logits.device))
    temperatures = torch.tensor([rule.params.temperature for rule in rules], device=logits.device)
    # The maximum is taken off first, so that tiny temperatures cannot overflow.
    return scores.sub_(scores.amax(dim=-1, keepdim=True)).div_(temperatures[:, None])


def _from_whole(scores: torch.Tensor, rules: Sequence[TokenRules]) -> list[int]:
    keys = key_tensor([rule.key for rule in rules], scores.device)
    ids = torch.arange(scores.shape[1], dtype=torch.int32, device=scores.device)[None]
    draws = to_uniforms(random_bits(keys, ids))
    bound = draws.view(torch.int32).to(torch.float32).mul_(-_LN2_PER_BIT).add_(_EXPONENT_BIAS).add_(scores)
    rows, columns = _where(bound >= bound.amax(dim=-1, keepdim=True) - _BOUND_SLACK)
    values = scores[rows, columns] - draws[rows, columns].neg_().log1p_().neg_().log_()
    best = torch.full((len(rules),), -torch.inf, device=scores.device)
    best.scatter_reduce_(0, rows, values, reduce="amax")
    ids_of_best = columns.masked_fill(values < best[rows], scores.shape[1])
    tokens = torch.full((len(rules),), scores.shape[1], dtype=torch.int64, device=scores.device)
    return tokens.scatter_reduce_(0, rows, ids_of_best, reduce="amin").tolist()


def _from_truncated(scores: torch.Tensor, rules: Sequence[TokenRules]) -> list[int]:
    keys = key_tensor([rule.key for rule in rules], scores.device)
    tokens = [0] * len(rules)
    for kept in truncate(scores, [rule.params for rule in rules]):
        draws = to_uniforms(random_bits(keys[kept.rows], kept.token_ids))
        values = kept.scores - draws.neg_().log1p_().neg_().log_()
        best = values.amax(dim=-1, keepdim=True)
        winners = kept.token_ids.masked_fill(values < best, scores.shape[1]).amin(dim=-1)
        for row, token_id in zip(kept.rows, winners.tolist(), strict=True):
            tokens[row] = token_id
    return tokens


def _where(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns of the few true entries of [R, N]."""
    if mask.device.type != "cpu":
        rows, columns = mask.nonzero(as_tuple=True)
        return rows, columns
    # NumPy is many times faster here.
    flat = torch.from_numpy(np.flatnonzero(mask.numpy()))
    return flat // mask.shape[1], flat % mask.shape[1]
