"""Rows to sample from, for tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

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


def processed(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Exact probabilities after transformers' own processors, in vLLM's order and typical last."""
    steps = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.min_p:
        steps.append(MinPLogitsWarper(params.min_p))
    if params.top_k:
        steps.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        steps.append(TopPLogitsWarper(params.top_p))
    if params.typical_p < 1:
        steps.append(TypicalLogitsWarper(params.typical_p))
    return torch.softmax(steps(torch.zeros(1, 0), logits[None].double())[0], dim=-1)
