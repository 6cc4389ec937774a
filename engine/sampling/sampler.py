"""From logits to tokens: the one path for plain, speculative, local and disaggregated decoding.

Order of processing, as in transformers and vLLM: `min_tokens` mask, temperature, top-k, top-p. The token
is then drawn by the Gumbel-max trick (argmax of log p - log E with E exponential, which picks token i
with probability p_i) with draws keyed by token id, so that no row depends on another. Rows are drawn one
at a time: each works on vectors of the same shape whatever the batch, and stays in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.api import SamplingParams
from engine.sampling.draws import Purpose, draw_key, exponentials

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: fp32 could not tell their distribution from the argmax."""

_NUCLEUS_HEADS = (256, 4096)


def is_greedy(params: SamplingParams) -> bool:
    """Whether the row takes the most likely token, the lowest id among equals."""
    return params.temperature < GREEDY_BELOW or params.top_k == 1


def sample(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    eos_token_ids: frozenset[int],
) -> torch.Tensor:
    """Draws one token for each row.

    Args:
        logits: [R, vocab] fp32; left as it is.
        params: one for each row.
        positions: index of the drawn token in its answer, resumed tokens counted: the draw's counter.
        eos_token_ids: forbidden in a row, with its stop tokens, while position < min_tokens.

    Returns:
        [R] int64.
    """
    if len(params) != logits.shape[0] or len(positions) != logits.shape[0]:
        raise ValueError(f"{logits.shape[0]} rows, {len(params)} params, {len(positions)} positions")
    logits = _forbid_early_stop(logits, params, positions, eos_token_ids)
    tokens = logits.argmax(dim=-1)
    for row, (row_params, position) in enumerate(zip(params, positions, strict=True)):
        if not is_greedy(row_params):
            tokens[row] = _draw(logits[row], row_params, position)
    return tokens


def candidates(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens that temperature, top-k and top-p leave, with their scores.

    Top-k keeps the `top_k` best scores. Top-p then keeps the smallest set of best scores whose mass,
    taken after top-k, reaches `top_p`: one at least. Both keep every token that ties with the last one.

    Args:
        logits: [vocab] fp32.
        params: of a row that is not greedy.

    Returns:
        Token ids [N], ascending, and log probabilities up to a constant [N] fp32, the largest being 0.
    """
    # The maximum is taken off first, so that tiny temperatures cannot overflow.
    scores = (logits - logits.max()) / params.temperature
    token_ids = torch.arange(scores.numel(), device=scores.device)
    if 0 < params.top_k < scores.numel():
        cutoff = torch.topk(scores, params.top_k, sorted=False).values.min()
        token_ids, scores = _at_least(cutoff, token_ids, scores)
    if params.top_p < 1.0:
        token_ids, scores = _at_least(_top_p_cutoff(scores, params.top_p), token_ids, scores)
    return token_ids, scores


def _at_least(
    cutoff: torch.Tensor, token_ids: torch.Tensor, scores: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    kept = torch.nonzero(scores >= cutoff).squeeze(-1)
    return token_ids[kept], scores[kept]


def _top_p_cutoff(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Score of the last token of the nucleus. Sorts no more than a head that holds enough mass."""
    wanted = top_p * torch.exp(scores).sum(dtype=torch.float64)
    for head in (*_NUCLEUS_HEADS, scores.numel()):
        descending = torch.topk(scores, min(head, scores.numel())).values
        mass = torch.cumsum(torch.exp(descending), dim=0, dtype=torch.float64)
        if mass[-1] >= wanted:
            break
    # Rounding may leave the whole mass just under a top_p close to 1: then the last token is the cutoff.
    last = min(int(torch.searchsorted(mass, wanted)), descending.numel() - 1)
    return descending[last]


def _draw(logits: torch.Tensor, params: SamplingParams, position: int) -> torch.Tensor:
    token_ids, scores = candidates(logits, params)
    key = draw_key(params.seed, params.choice, position, Purpose.TOKEN)
    return token_ids[(scores - torch.log(exponentials(key, token_ids))).argmax()]


def _forbid_early_stop(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    eos_token_ids: frozenset[int],
) -> torch.Tensor:
    """Returns the logits with stop tokens at -inf where too few tokens are drawn; a copy if any are."""
    rows: list[int] = []
    columns: list[int] = []
    for row, (row_params, position) in enumerate(zip(params, positions, strict=True)):
        if position < row_params.min_tokens:
            stops = [token for token in eos_token_ids | row_params.stop_token_ids if token < logits.shape[1]]
            rows += [row] * len(stops)
            columns += stops
    if not rows:
        return logits
    masked = logits.clone()
    masked[rows, columns] = -torch.inf
    return masked
