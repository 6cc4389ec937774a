"""Rows to sample from, for tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.api import SamplingParams
from engine.sampling.rules import TokenRules
from engine.sampling.sampler import Sampler

GREEDY = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, seed=0, choice=0, max_tokens=10)


def rules_at(
    params: SamplingParams, position: int, vocab_size: int, eos: frozenset[int] = frozenset()
) -> TokenRules:
    """Rules of a row whose answer has `position` tokens, all 0."""
    return TokenRules(params, (0,), [0] * position, eos, vocab_size)


def sample(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    eos: frozenset[int] = frozenset(),
) -> torch.Tensor:
    """Tokens of rows whose answers are as `rules_at` makes them, [R] int64."""
    rows = [rules_at(*row, logits.shape[1], eos) for row in zip(params, positions, strict=True)]
    return torch.tensor(Sampler().sample(logits, rows).token_ids, dtype=torch.int64)
