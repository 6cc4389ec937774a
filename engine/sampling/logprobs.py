"""Log probabilities of tokens, from the model's own logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.api import TokenLogprobs

_CHUNK_ELEMENTS = 1 << 20


def token_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Natural log probability and rank of one token in each row, and the likeliest tokens beside it.

    Args:
        logits: [R, vocab] fp32.
        token_ids: one for each row.
        num_top: likeliest tokens to report for each row.
    """
    reports: list[TokenLogprobs] = []
    size = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    for start in range(0, len(token_ids), size):
        rows = slice(start, start + size)
        reports += _of_chunk(logits[rows], token_ids[rows], num_top[rows])
    return reports


def _of_chunk(logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    chosen = torch.tensor(token_ids, device=logits.device)[:, None]
    logprobs = logits.log_softmax(dim=-1)
    own = logprobs.gather(1, chosen).squeeze(-1).tolist()
    ranks = (logits > logits.gather(1, chosen)).sum(dim=-1).add_(1).tolist()
    most = min(max(num_top), logits.shape[1])
    if not most:
        return [TokenLogprobs(value, rank, ()) for value, rank in zip(own, ranks, strict=True)]
    best = logprobs.topk(most, dim=-1)
    values, ids = best.values.tolist(), best.indices.tolist()
    return [
        TokenLogprobs(own[row], ranks[row], tuple(zip(ids[row][:count], values[row][:count], strict=True)))
        for row, count in enumerate(num_top)
    ]
