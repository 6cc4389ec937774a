"""Draws one token for each of many rows at once, from whole or truncated distributions; or tells these.

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

from engine.sampling.draws import exponentials, key_tensor, write_uniforms
from engine.sampling.keys import DrawKey
from engine.sampling.parts import DrawnPart, PartsOfSteps
from engine.sampling.rules import TokenRules
from engine.sampling.truncation import Limits, truncate

# Elements that are worked on at a time: what fits a core's cache.
_CHUNK_ELEMENTS = 1 << 18
# A float's bits, read as an integer, are its base-2 logarithm in units of 2**-23, off by at most 0.0861.
_LN2_PER_BIT = math.log(2.0) / (1 << 23)
_EXPONENT_BIAS = 127 * math.log(2.0)
# ln 2 * 0.0861 for the linear interpolation, and ln(E / u), at most ln(16.7), for E = -ln(1 - u) >= u.
_BOUND_SLACK = 3.0


class Drawer:
    """Draws tokens.

    Keeps what is the same in the next step: the memory that it works in, for fresh memory costs more than the
    work, and what is known of rows for as long as they are the same (`engine.sampling.parts`).
    """

    def __init__(self) -> None:
        self._memory: tuple[torch.Tensor, ...] = ()
        self._parts = PartsOfSteps(_CHUNK_ELEMENTS)

    def begin(self) -> None:
        """A new step begins: its draws are expected to be those of the step before, in the same order."""
        self._parts.begin()

    def draw(self, logits: torch.Tensor, rows: list[int], rules: list[TokenRules]) -> list[int]:
        """Draws a token for some rows.

        Args:
            logits: [R, vocab] fp32; left as they are.
            rows: which to draw for; each has a finite best.
            rules: one for each of `rows`; none is greedy.
        """
        tokens = [0] * len(rows)
        keys = key_tensor([rule.key for rule in rules], logits.device)
        for part in self._parts.of(rows, rules, logits):
            ids, scores, *memory = self._room(len(part.places), logits)
            _score(logits, part, scores)
            own_keys = keys[part.index]
            if part.limits is None:
                drawn = _from_whole(scores, own_keys, ids, *memory)
            else:
                drawn = _from_truncated(scores, own_keys, part.limits)
            for place, token_id in zip(part.places, drawn, strict=True):
                tokens[place] = token_id
        return tokens

    def probabilities(self, logits: torch.Tensor, rows: list[int], rules: list[TokenRules]) -> torch.Tensor:
        """What `draw` draws from: [len(rows), vocab] fp32, 0 where a token is cut off; arguments as there."""
        told = torch.zeros(len(rows), logits.shape[1], device=logits.device)
        for part in self._parts.of(rows, rules, logits):
            _, scores, *_ = self._room(len(part.places), logits)
            _score(logits, part, scores)
            if part.limits is None:
                told[part.index] = scores.softmax(dim=-1)
                continue
            for kept in truncate(scores, part.limits):
                own = part.index[kept.rows]
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
            ids, scores, *memory = self._room(len(part), weights)
            torch.log(weights[start : start + size], out=scores)
            tokens += _from_whole(scores, key_tensor(list(part), weights.device), ids, *memory)
        return tokens

    def _room(self, rows: int, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All token ids, [1, vocab] int32; and two fp32 and two int32 tensors [rows, vocab], with whatever
        was in them before."""
        vocab_size = logits.shape[1]
        if not self._memory or self._memory[0].shape[1] != vocab_size or len(self._memory[1]) < rows:
            kinds = (torch.float32, torch.float32, torch.int32, torch.int32)
            ids = torch.arange(vocab_size, dtype=torch.int32, device=logits.device)[None]
            room = (torch.empty(rows, vocab_size, dtype=kind, device=logits.device) for kind in kinds)
            self._memory = (ids, *room)
        ids, *memory = self._memory
        return (ids, *(tensor[:rows] for tensor in memory))


def _score(logits: torch.Tensor, part: DrawnPart, out: torch.Tensor) -> None:
    """Writes log probabilities up to a constant, [rows of the part, vocab]: the best of each row is 0."""
    torch.index_select(logits, 0, part.rows, out=out)
    # The maximum is taken off first, so that tiny temperatures cannot overflow.
    out.sub_(out.amax(dim=-1, keepdim=True)).div_(part.temperatures)


def _from_whole(
    scores: torch.Tensor,
    keys: torch.Tensor,
    ids: torch.Tensor,
    draws: torch.Tensor,
    bits: torch.Tensor,
    spare: torch.Tensor,
) -> list[int]:
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


def _from_truncated(scores: torch.Tensor, keys: torch.Tensor, limits: Limits) -> list[int]:
    tokens = [0] * len(scores)
    for kept in truncate(scores, limits):
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
