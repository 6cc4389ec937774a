"""Has a head copy: one of its key heads finds where the last token stood before, and proposes what followed.

Answers repeat what their prompt says, and themselves. A model learns to go on as it did before (induction
heads, Olsson et al., 2022, https://arxiv.org/abs/2209.11895) from far more text than a head sees, so that one
with random attention hardly learns to copy at all. Here the attention for it is computed from a sample of
answers, and training makes of it what it can.

Slot j + 1 of a head's input holds token j + 1 and the fused feature of position j, which tells of token j and
of what led to it. So its key is what can be told of that feature from slot j, by canonical correlation: the
query of slot p asks for features like the one that position p will have. Its value is a code of token j + 1,
and the output adds to the residual stream what the LM head takes for that token. Rotary embedding turns
quickly rotated pairs apart with distance: for enough others to compare contents, heads that copy turn slowly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.models.config import Rope
from engine.models.rotary import inverse_frequencies
from training.dataset import Answers, pack
from training.head import Eagle3Head
from training.target import TargetWeights
from training.unroll import unroll

FRESH, TRAINED = 12.0, 3.0
"""How far a copy turns the residual stream, beside its size: where little is known yet, or much."""

_ANSWERS = 80
_THETA = 1e8
_REACH = 600.0
"""Distance in tokens over which a pair may turn by one radian at most."""
_FEWEST = 8
_CODES = 120
"""Canonical directions of which the codes are mixed."""
_SHARPNESS = 0.15
_SINK = 40.0
"""Score of slot 1 where nothing stood before, in the units of codes."""
_RIDGE = 1e-2


@dataclass(frozen=True, slots=True)
class _Sample:
    """Normed inputs of slots, a row each, and how much each row counts.

    Attributes:
        tokens: [N, H], embeddings.
        hidden: [N, H], fused features of the slot before.
        following: [N, H], the hidden half of the next slot.
        weights: [N], more for rare tokens.
        first: [n, H], the hidden half of slots 1.
        size: root mean square of the layer's outputs.
    """

    tokens: torch.Tensor
    hidden: torch.Tensor
    following: torch.Tensor
    weights: torch.Tensor
    first: torch.Tensor
    size: float


@torch.no_grad()
def add_induction(
    head: Eagle3Head, token_ids: torch.Tensor, target: TargetWeights, answers: Answers, amount: float
) -> bool:
    """Replaces the first key head and the query heads that share it, and has the head rotate slowly.

    Args:
        head: the head.
        token_ids: [Vd], its draft vocabulary.
        target: its target.
        answers: a sample of which is read.
        amount: `FRESH` or `TRAINED`.

    Returns:
        False where it is left as it is: too few of its pairs would turn slowly.
    """
    config, attention = head.config, head.midlayer.self_attn
    dim, hidden = config.head_dim, config.hidden_size
    half = dim // 2
    rope = Rope(dim, max(_THETA, config.rope.theta))
    angles = (inverse_frequencies(rope) * _REACH).tolist()
    slow = [pair for pair, angle in enumerate(angles) if angle < 1.0]
    places = [place for pair in slow for place in (pair, pair + half)]
    if len(places) < _FEWEST:
        return False
    # The slowest of all is the sink's.
    *places, sink = places[-min(_CODES, hidden) :]
    head.turn(rope)
    sample = _sample(head, target, answers)
    generator = torch.Generator().manual_seed(0)
    keys, queries = _matching(sample, len(places), generator)
    values, outputs = _copying(head, token_ids, target, dim, generator)
    group = config.num_heads // config.num_kv_heads
    key = torch.zeros(dim, 2 * hidden)
    key[places, hidden:] = keys.t()
    key[sink, hidden:] = _indicator(sample.following, sample.first)
    query = torch.zeros(dim, 2 * hidden)
    query[places] = queries.t()
    query[sink] = _SINK * _constant(torch.cat((sample.tokens, sample.hidden), dim=1))
    attention.k_proj.weight[:dim] = key
    attention.v_proj.weight[:dim] = 0.0
    attention.v_proj.weight[:dim, :hidden] = values.t()
    factor = amount * sample.size / float(head.norm.weight.mean()) / dim / group
    for index in range(group):
        rows = slice(index * dim, (index + 1) * dim)
        attention.q_proj.weight[rows] = query * _SHARPNESS * dim**0.5
        attention.o_proj.weight[:, rows] = outputs * factor
    return True


def _sample(head: Eagle3Head, target: TargetWeights, answers: Answers) -> _Sample:
    layer = head.midlayer
    hidden: list[torch.Tensor] = []
    following: list[torch.Tensor] = []
    ids: list[torch.Tensor] = []
    first: list[torch.Tensor] = []
    sizes: list[float] = []
    step = max(1, len(answers) // _ANSWERS)
    for number in range(0, len(answers), step):
        answer = answers.read(number)
        # Row j is the hidden half of slot j + 1.
        fused = layer.hidden_norm(head.fuse(answer.features))
        ids.append(answer.token_ids[1 : len(fused)].long())
        hidden.append(fused[:-1])
        following.append(fused[1:])
        first.append(fused[:1])
        if len(sizes) < 4:
            outputs = next(iter(unroll(head, target.embedding, pack([answer], "cpu").batch, 1))).hidden
            sizes.append(float(outputs.square().mean().sqrt()))
    flat = torch.cat(ids)
    tokens = layer.input_layernorm(target.embedding.index_select(0, flat))
    counts = torch.bincount(flat).float()[flat]
    weights = counts.rsqrt()
    return _Sample(
        tokens,
        torch.cat(hidden),
        torch.cat(following),
        weights / weights.mean(),
        torch.cat(first),
        sum(sizes) / len(sizes),
    )


def _matching(sample: _Sample, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of keys, [H, size], of hidden halves, and of queries, [2 H, size], of the slots before them."""
    seen, asked, weights = sample.following, torch.cat((sample.tokens, sample.hidden), dim=1), sample.weights
    seen_mean = (seen * weights[:, None]).mean(dim=0)
    asked_mean = (asked * weights[:, None]).mean(dim=0)
    left, right = seen - seen_mean, asked - asked_mean
    whiten_left, whiten_right = (_whitening(part, weights, _RIDGE) for part in (left, right))
    cross = (left * weights[:, None]).t() @ right / len(left)
    u, correlations, vt = torch.linalg.svd(whiten_left @ cross @ whiten_right, full_matrices=False)
    count = min(_CODES, len(correlations))
    scale = correlations[:count].sqrt()
    mix = torch.linalg.qr(torch.randn(count, count, generator=generator)).Q[:, :size] * (count / size) ** 0.5
    keys = whiten_left @ u[:, :count] * scale @ mix
    queries = whiten_right @ vt[:count].t() * scale @ mix
    # There are no biases: the means are taken off by what is constant in the inputs.
    keys = keys - torch.outer(_constant(seen), seen_mean @ keys)
    return keys, queries - torch.outer(_constant(asked), asked_mean @ queries)


def _copying(
    head: Eagle3Head, token_ids: torch.Tensor, target: TargetWeights, size: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """From embeddings to codes of tokens, and from codes to what the LM head looks for, each [H, size]."""
    rows = head.lm_head.weight - head.lm_head.weight.mean(dim=0)
    even = torch.ones(len(rows))
    random = torch.linalg.qr(torch.randn(rows.shape[1], rows.shape[1], generator=generator)).Q[:, :size]
    outputs = _whitening(rows, even, 3 * _RIDGE) @ random
    embedded = head.midlayer.input_layernorm(target.embedding.index_select(0, token_ids))
    centred = embedded - embedded.mean(dim=0)
    values = _solved(_second_moment(centred, even, _RIDGE), centred.t() @ (rows @ outputs) / len(rows))
    return values * size**0.5 / (embedded @ values).norm(dim=1).mean(), outputs


def _second_moment(rows: torch.Tensor, weights: torch.Tensor, ridge: float) -> torch.Tensor:
    moment: torch.Tensor = (rows * weights[:, None]).t() @ rows / len(rows)
    return moment + ridge * moment.diagonal().mean() * torch.eye(rows.shape[1])


def _whitening(rows: torch.Tensor, weights: torch.Tensor, ridge: float) -> torch.Tensor:
    """The symmetric matrix that makes centred rows uncorrelated and of unit variance."""
    vectors: torch.Tensor
    values, vectors = torch.linalg.eigh(_second_moment(rows, weights, ridge))
    return vectors @ torch.diag(values.rsqrt()) @ vectors.t()


def _constant(rows: torch.Tensor) -> torch.Tensor:
    """The direction along which all rows have about 1."""
    return _solved(_second_moment(rows, torch.ones(len(rows)), _RIDGE), rows.mean(dim=0))


def _indicator(rows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The direction along which chosen rows have about 1 and the others about 0."""
    repeated = chosen.repeat(max(1, len(rows) // (10 * len(chosen))), 1)
    both = torch.cat((rows, repeated))
    wanted = torch.cat((torch.zeros(len(rows)), torch.ones(len(repeated))))
    moment = _second_moment(both, torch.ones(len(both)), _RIDGE)
    return _solved(moment, (both * wanted[:, None]).mean(dim=0))


def _solved(matrix: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    solution: torch.Tensor = torch.linalg.solve(matrix, right)
    return solution
