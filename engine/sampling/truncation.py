"""Which tokens min-p, top-k, top-p and typical-p leave: always those whose score lies in one interval.

Scores are log probabilities up to a constant, the best being 0. What is needed of a row lies at its head
nearly always, so the 256 best scores are looked at first, then 4,096, then all. A row takes the same way
whatever stands beside it, and masses are summed one after the other in fp64, so its outcome does not depend
on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.api import SamplingParams

_HEADS = (256, 4096)
_LANE = 64


@dataclass(frozen=True, slots=True)
class Kept:
    """What truncation leaves of some rows.

    Attributes:
        rows: which of the given rows these are.
        token_ids: [len(rows), N] int64.
        scores: [len(rows), N] fp32, -inf where the token is cut off.
    """

    rows: list[int]
    token_ids: torch.Tensor
    scores: torch.Tensor


@dataclass(frozen=True, slots=True)
class Limits:
    """Parameters of R rows, as `limits_of` makes them; they hold as long as the rows are the same.

    Attributes:
        min_score: [R, 1] fp32, the log of min_p.
        top_k: [R, 1] int64, at most the vocabulary.
        top_p: [R, 1] fp64.
        typical_p: one for each row.
    """

    min_score: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    typical_p: tuple[float, ...]

    def of(self, rows: torch.Tensor) -> Limits:
        """Those of some rows."""
        typical_p = tuple(self.typical_p[row] for row in rows.tolist())
        return Limits(self.min_score[rows], self.top_k[rows], self.top_p[rows], typical_p)


def limits_of(params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> Limits:
    """What the parameters of rows cut off of a vocabulary."""
    values = np.array([(p.min_p, p.top_k, p.top_p) for p in params], dtype=np.float64).reshape(-1, 3)
    with np.errstate(divide="ignore"):
        min_scores = np.log(values[:, 0]).astype(np.float32)
    top_k = values[:, 1].astype(np.int64)
    top_k[(top_k == 0) | (top_k > vocab_size)] = vocab_size
    return Limits(
        torch.from_numpy(min_scores).to(device)[:, None],
        torch.from_numpy(top_k).to(device)[:, None],
        torch.from_numpy(np.ascontiguousarray(values[:, 2])).to(device)[:, None],
        tuple(p.typical_p for p in params),
    )


def truncate(scores: torch.Tensor, limits: Limits) -> list[Kept]:
    """Cuts tokens off.

    Min-p keeps the scores that are at least log(min_p). Top-k keeps the `top_k` best. Top-p then keeps the
    smallest set of best scores whose mass, taken of what is left so far, reaches `top_p`: one at least.
    Each keeps every token that ties with the last one. Typical-p keeps those of what is left whose
    information is closest to the entropy, until their mass reaches `typical_p`.

    Args:
        scores: [R, vocab] fp32, the best of each row being 0; left as it is.
        limits: of the rows.

    Returns:
        Every row in one of the groups.
    """
    vocab_size = scores.shape[1]
    rows = torch.arange(len(scores), device=scores.device)
    kept: list[Kept] = []
    for size in (*(head for head in _HEADS if head < vocab_size), vocab_size):
        is_all = size == vocab_size
        head, token_ids = scores.topk(size, dim=-1) if not is_all else scores.sort(dim=-1, descending=True)
        lowest, settled = _lowest_kept(scores, head, limits, is_all)
        if bool(settled.any()):
            which = settled.nonzero().squeeze(-1)
            left = head[which].masked_fill(head[which] < lowest[which], -torch.inf)
            _keep_typical(left, [limits.typical_p[row] for row in which.tolist()])
            kept.append(Kept(rows[which].tolist(), token_ids[which], left))
        if bool(settled.all()):
            break
        open_rows = (~settled).nonzero().squeeze(-1)
        scores, rows, limits = scores[open_rows], rows[open_rows], limits.of(open_rows)
    return kept


def _lowest_kept(
    scores: torch.Tensor, head: torch.Tensor, limits: Limits, is_all: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest score to keep in each row, [R, 1], and whether the head is enough to say so, [R].

    Args:
        scores: [R, vocab].
        head: [R, N] its best, descending.
        limits: of the rows.
        is_all: the head is all there is.
    """
    size = head.shape[1]
    has_kth = limits.top_k <= size
    kth = head.gather(1, limits.top_k.clamp(max=size) - 1)
    lowest = torch.maximum(limits.min_score, kth.masked_fill(~has_kth, -torch.inf))
    last_score = head[:, -1:]
    # Whoever ties with the last of the head may stand outside it, but for those that are cut off anyway.
    closed = (lowest > last_score) | (last_score == -torch.inf) | is_all
    nucleus = limits.top_p < 1.0
    if bool(nucleus.any()):
        weights = head.exp().masked_fill_(head < lowest, 0.0)
        mass = weights.cumsum(dim=-1, dtype=torch.float64)
        total = mass[:, -1:].clone()
        # Top-k cuts off within the head, or the mass beyond it counts as well.
        beyond = (nucleus & ~closed & (limits.top_k >= scores.shape[1])).squeeze(-1)
        if bool(beyond.any()):
            some = slice(None) if bool(beyond.all()) else beyond
            total[some] = _mass(scores[some], limits.min_score[some])
        wanted = limits.top_p * total
        # Rounding may leave the whole mass just under a top_p close to 1: then the last token is the limit.
        last = (mass < wanted).sum(dim=-1, keepdim=True)
        reached = last < size
        knows_total = closed | beyond[:, None]
        in_nucleus = torch.maximum(lowest, head.gather(1, last.clamp(max=size - 1)))
        usable = nucleus & knows_total & (reached | closed)
        lowest = torch.where(usable, in_nucleus, lowest)
        closed = torch.where(nucleus, usable & (closed | (lowest > last_score)), closed)
    return lowest, closed.squeeze(-1)


def _mass(scores: torch.Tensor, lowest: torch.Tensor) -> torch.Tensor:
    """Sum of exp over the scores of at least `lowest`, [R, 1] fp64."""
    weights = scores.exp()
    if bool((lowest > -torch.inf).any()):
        weights.masked_fill_(scores < lowest, 0.0)
    short = -weights.shape[1] % _LANE
    if short:
        weights = torch.nn.functional.pad(weights, (0, short))
    # In short lanes and then in order: a plain sum of one row may be split among threads.
    lanes = weights.view(weights.shape[0], -1, _LANE).sum(dim=-1, dtype=torch.float64)
    return lanes.cumsum(dim=-1)[:, -1:]


def _keep_typical(scores: torch.Tensor, typical_p: Sequence[float]) -> None:
    """Sets the scores of all but the typical tokens to -inf, in place. Rows are [N], -inf where cut off."""
    for row, wanted in enumerate(typical_p):
        if wanted < 1.0:
            kept = (scores[row] > -torch.inf).nonzero().squeeze(-1)
            left = scores[row, kept].double()
            log_p = left - left.exp().cumsum(0)[-1].log()
            entropy = -(log_p.exp() * log_p).cumsum(0)[-1]
            distance = (-log_p - entropy).abs()
            order = distance.argsort(stable=True)
            mass = log_p.exp()[order].cumsum(0)
            last = min(int((mass < wanted).sum()), len(kept) - 1)
            scores[row, kept[distance > distance[order[last]]]] = -torch.inf
