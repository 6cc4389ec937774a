"""Draws one token for each of many rows at once, from whole or truncated distributions; or tells these.

The Gumbel-max trick: the argmax of log p - log E, with E exponential, is token i with probability p_i. E is
keyed by row and token id, so no row depends on another and nothing is drawn in any order.

Over a whole vocabulary the logarithms would cost most. An upper bound of -log E that takes no logarithm,
read off the bits of the uniform draw, tells which few tokens can win at all; only theirs are computed. The
bound is within 3 of the truth for every draw there is, so the outcome is that of computing all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from engine.sampling.draws import exponentials, key_tensor, write_uniforms
from engine.sampling.keys import DrawKey
from engine.sampling.rules import TokenRules
from engine.sampling.truncation import truncate

# Elements that are worked on at a time: what fits a core's cache.
_CHUNK_ELEMENTS = 1 << 18
# A float's bits, read as an integer, are its base-2 logarithm in units of 2**-23, off by at most 0.0861.
_LN2_PER_BIT = math.log(2.0) / (1 << 23)
_EXPONENT_BIAS = 127 * math.log(2.0)
# ln 2 * 0.0861 for the linear interpolation, and ln(E / u), at most ln(16.7), for E = -ln(1 - u) >= u.
_BOUND_SLACK = 3.0


class Drawer:
    """Draws tokens. Keeps the memory that it works in, for fresh memory costs more than the work."""

    def __init__(self) -> None:
        self._memory: tuple[torch.Tensor, ...] = ()

    def draw(self, logits: torch.Tensor, rows: Sequence[int], rules: Sequence[TokenRules]) -> list[int]:
        """Draws a token for some rows.

        Args:
            logits: [R, vocab] fp32; left as they are.
            rows: which to draw for; each has a finite best.
            rules: one for each of `rows`; none is greedy.
        """
        tokens = [0] * len(rows)
        for part, scores, memory in self._scored(logits, rows, rules):
            chosen = [rules[index] for index in part]
            keys = key_tensor([rule.key for rule in chosen], logits.device)
            if chosen[0].truncates:
                drawn = _from_truncated(scores, chosen, keys)
            else:
                drawn = _from_whole(scores, keys, *memory)
            for index, token_id in zip(part, drawn, strict=True):
                tokens[index] = token_id
        return tokens

    def probabilities(
        self, logits: torch.Tensor, rows: Sequence[int], rules: Sequence[TokenRules]
    ) -> torch.Tensor:
        """What `draw` draws from: [len(rows), vocab] fp32, 0 where a token is cut off; arguments as there."""
        told = torch.zeros(len(rows), logits.shape[1], device=logits.device)
        for part, scores, _ in self._scored(logits, rows, rules):
            places = torch.tensor(part, device=logits.device)
            if not rules[part[0]].truncates:
                told[places] = scores.softmax(dim=-1)
                continue
            for kept in truncate(scores, [rules[index].params for index in part]):
                own = places[kept.rows]
                told[own[:, None], kept.token_ids] = kept.scores.softmax(dim=-1)
        return told

    def draw_from(self, weights: torch.Tensor, keys: Sequence[DrawKey]) -> list[int]:
        """Draws a token for each row, in proportion to its weights.

        Args:
            weights: [R, vocab] fp32, none negative, in each row one that is not 0; left as they are.
            keys: of the draws, one for each row.
        """
        tokens: list[int] = []
        size = max(1, _CHUNK_ELEMENTS // weights.shape[1])
        for start in range(0, len(keys), size):
            part = keys[start : start + size]
            scores, *memory = self._room(len(part), weights)
            torch.log(weights[start : start + size], out=scores)
            tokens += _from_whole(scores, key_tensor(list(part), weights.device), *memory)
        return tokens

    def _scored(
        self, logits: torch.Tensor, rows: Sequence[int], rules: Sequence[TokenRules]
    ) -> Iterator[tuple[list[int], torch.Tensor, list[torch.Tensor]]]:
        """Parts of `rows` that truncate or do not: which of them, their scores, and memory beside these."""
        size = max(1, _CHUNK_ELEMENTS // logits.shape[1])
        for truncated in (False, True):
            group = [index for index, rule in enumerate(rules) if rule.truncates is truncated]
            for start in range(0, len(group), size):
                part = group[start : start + size]
                scores, *memory = self._room(len(part), logits)
                _score(logits, [rows[index] for index in part], [rules[index] for index in part], scores)
                yield part, scores, memory

    def _room(self, rows: int, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Two fp32 and two int32 tensors [rows, vocab], with whatever was in them before."""
        vocab_size = logits.shape[1]
        if not self._memory or self._memory[0].shape[1] != vocab_size or len(self._memory[0]) < rows:
            kinds = (torch.float32, torch.float32, torch.int32, torch.int32)
            self._memory = tuple(
                torch.empty(rows, vocab_size, dtype=kind, device=logits.device) for kind in kinds
            )
        return tuple(tensor[:rows] for tensor in self._memory)


def _score(logits: torch.Tensor, rows: list[int], rules: Sequence[TokenRules], out: torch.Tensor) -> None:
    """Writes log probabilities up to a constant, [len(rows), vocab]: the best of each row is 0."""
    torch.index_select(logits, 0, torch.tensor(rows, device=logits.device), out=out)
    temperatures = torch.tensor([rule.params.temperature for rule in rules], device=logits.device)
    # The maximum is taken off first, so that tiny temperatures cannot overflow.
    out.sub_(out.amax(dim=-1, keepdim=True)).div_(temperatures[:, None])


def _from_whole(
    scores: torch.Tensor, keys: torch.Tensor, draws: torch.Tensor, bits: torch.Tensor, spare: torch.Tensor
) -> list[int]:
    ids = torch.arange(scores.shape[1], dtype=torch.int32, device=scores.device)[None]
    write_uniforms(keys, ids, draws, bits, spare)
    bound = spare.view(torch.float32).copy_(draws.view(torch.int32))
    bound.mul_(-_LN2_PER_BIT).add_(_EXPONENT_BIAS).add_(scores)
    rows, columns = _where(bound >= bound.amax(dim=-1, keepdim=True) - _BOUND_SLACK)
    values = scores[rows, columns] - draws[rows, columns].neg_().log1p_().neg_().log_()
    best = torch.full((len(keys),), -torch.inf, device=scores.device)
    best.scatter_reduce_(0, rows, values, reduce="amax")
    ids_of_best = columns.masked_fill(values < best[rows], scores.shape[1])
    tokens = torch.full((len(keys),), scores.shape[1], dtype=torch.int64, device=scores.device)
    return tokens.scatter_reduce_(0, rows, ids_of_best, reduce="amin").tolist()


def _from_truncated(scores: torch.Tensor, rules: Sequence[TokenRules], keys: torch.Tensor) -> list[int]:
    tokens = [0] * len(rules)
    for kept in truncate(scores, [rule.params for rule in rules]):
        values = kept.scores - exponentials(keys[kept.rows], kept.token_ids).log_()
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
