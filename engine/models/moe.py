"""Mixture of experts (Shazeer et al., 2017; here as in Mixtral).

Each token goes through a few of a layer's feed-forwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.ops.activation import Activation
from engine.ops.base import Linear, Ops


@dataclass(frozen=True, slots=True)
class ExpertsWeights:
    """The experts of one layer. H hidden, E experts, I intermediate size of one.

    Attributes:
        router: H to E, never quantised: choosing is too brittle for anything coarser.
        gate_up: for each expert H to 2 I, from `Ops.pack_gated`.
        down: for each expert I to H.
        per_token: experts that each token goes to.
        normalized: whether the weights of a token's experts are made to sum to 1.
    """

    router: Linear
    gate_up: tuple[Linear, ...]
    down: tuple[Linear, ...]
    per_token: int
    normalized: bool


def run_experts(
    ops: Ops, weights: ExpertsWeights, hidden: torch.Tensor, activation: Activation
) -> torch.Tensor:
    """The weighted sum of each token's experts: normed hidden states [T, H] to [T, H].

    Tokens are sorted by expert, so that each expert that has any runs once over all of its own.
    """
    scores = torch.softmax(ops.linear(hidden, weights.router), dim=-1, dtype=torch.float32)
    shares, chosen = scores.topk(weights.per_token, dim=-1)
    if weights.normalized:
        shares /= shares.sum(dim=-1, keepdim=True)
    experts, order = chosen.flatten().sort(stable=True)
    tokens = order // weights.per_token
    inputs = hidden.index_select(0, tokens)
    shares = shares.flatten().index_select(0, order)[:, None].to(hidden.dtype)
    result = torch.zeros_like(hidden)
    start = 0
    for expert, count in enumerate(torch.bincount(experts, minlength=len(weights.down)).tolist()):
        if not count:
            continue
        own = slice(start, start + count)
        start += count
        gated = ops.gated_linear(inputs[own], weights.gate_up[expert], activation)
        result.index_add_(0, tokens[own], ops.linear(gated, weights.down[expert]) * shares[own])
    return result
