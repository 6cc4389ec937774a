"""Sampling: exact distributions, reproducible draws, nothing shared between rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.api import SamplingParams
from engine.sampling.choice import Drawer
from engine.sampling.draws import exponentials, key_tensor
from engine.sampling.keys import Purpose, draw_key
from engine.sampling.sampler import Sampler
from engine.sampling.truncation import limits_of, truncate
from tests.engine.sampling_rows import GREEDY, processed, rules_at, sample

RANDOM = replace(GREEDY, temperature=1.0)
LOGITS = torch.tensor([1.2, -0.3, 0.0, 2.0, 0.9, -1.5, 1.9, -4.0])
# (degrees of freedom) -> value exceeded once in 10**6 fair runs; the seeds are fixed.
CHI_SQUARE = {1: 24.0, 2: 27.7, 3: 30.7, 4: 33.4, 5: 35.9, 6: 38.3, 7: 40.6}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.5},
        {"top_k": 3},
        {"top_p": 0.6},
        {"min_p": 0.3},
        {"typical_p": 0.5},
        {"temperature": 0.8, "top_k": 5, "top_p": 0.9},
        {"temperature": 1.7, "top_k": 6, "top_p": 0.85},
        {"temperature": 1.7, "top_k": 6, "top_p": 0.95, "min_p": 0.05, "typical_p": 0.9},
        {"temperature": 2.0, "min_p": 0.1, "top_p": 0.8},
        {"top_k": 100, "top_p": 0.999999},
    ],
)
@pytest.mark.parametrize("axis", ["seed", "position", "choice"])
def test_distribution(changes: dict[str, Any], axis: str) -> None:
    draws = 3000
    params = replace(RANDOM, seed=77, **changes)
    rows = [replace(params, **({axis: n} if axis != "position" else {})) for n in range(draws)]
    positions = list(range(draws)) if axis == "position" else [4] * draws
    tokens = sample(LOGITS.expand(draws, -1), rows, positions)
    counts = torch.bincount(tokens, minlength=len(LOGITS)).double()
    expected = processed(LOGITS, params) * draws
    possible = expected > 0
    assert not counts[~possible].any(), "a token outside top-k or top-p was drawn"
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    assert statistic < CHI_SQUARE[int(possible.sum()) - 1]


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.99, 0.999999])
@pytest.mark.parametrize("top_k", [0, 3, 50, 3000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_candidates_equal_transformers(spread: float, top_k: int, top_p: float) -> None:
    """On a vocabulary whose nucleus may be one token, hundreds or nearly all of it."""
    logits = torch.randn(6000, generator=torch.Generator().manual_seed(3)) * spread
    check_candidates(logits, replace(RANDOM, temperature=0.9, top_k=top_k, top_p=top_p))


def check_candidates(logits: torch.Tensor, params: SamplingParams) -> None:
    token_ids, scores = candidates(logits, params)
    expected = processed(logits, params)
    wanted = torch.nonzero(expected).squeeze(-1)
    # One token at the edge of a mass may fall on either side by rounding.
    edges = (params.top_p < 1) + (params.typical_p < 1)
    assert len(set(token_ids.tolist()) ^ set(wanted.tolist())) <= edges
    torch.testing.assert_close(
        torch.softmax(scores.double(), dim=0), expected[token_ids], atol=1e-4 + 2e-3 * edges, rtol=1e-3
    )


@pytest.mark.parametrize("vocab", [40, 257, 5000])
@pytest.mark.parametrize("spread", [0.5, 3.0])
@pytest.mark.parametrize("min_p", [0.0, 1e-3, 0.2, 1.0])
@pytest.mark.parametrize("typical_p", [1.0, 0.2, 0.95])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (20, 1.0), (0, 0.8), (300, 0.97)])
def test_all_truncations_together_equal_transformers(
    vocab: int, spread: float, min_p: float, typical_p: float, top_k: int, top_p: float
) -> None:
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(vocab)) * spread
    check_candidates(
        logits, replace(RANDOM, temperature=1.1, min_p=min_p, top_k=top_k, top_p=top_p, typical_p=typical_p)
    )


def candidates(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids that truncation leaves, ascending, with their scores."""
    limits = limits_of([params], len(logits), logits.device)
    (kept,) = truncate(((logits - logits.max()) / params.temperature)[None], limits)
    assert kept.rows == [0]
    left = kept.scores[0] > -torch.inf
    token_ids, order = kept.token_ids[0, left].sort()
    return token_ids, kept.scores[0, left][order]


def test_greedy_takes_the_lowest_of_equal_tokens() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 1.0, 5.0, 5.0]])
    assert sample(logits, [GREEDY] * 2, [0, 0]).tolist() == [1, 0]


def test_tiny_temperatures_and_top_k_one_are_greedy() -> None:
    for params in (replace(GREEDY, temperature=1e-6), replace(RANDOM, top_k=1)):
        rows = [replace(params, seed=seed) for seed in range(50)]
        assert sample(LOGITS.expand(50, -1), rows, [0] * 50).tolist() == [3] * 50


def test_small_temperature_does_not_overflow() -> None:
    rows = [replace(RANDOM, temperature=2e-5, seed=seed) for seed in range(50)]
    logits = LOGITS.expand(50, -1) * 1e4
    assert sample(logits, rows, [0] * 50).tolist() == [3] * 50


def test_top_k_keeps_ties() -> None:
    logits = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0])
    token_ids, _ = candidates(logits, replace(RANDOM, top_k=2))
    assert token_ids.tolist() == [1, 2, 3]


def test_a_row_does_not_depend_on_its_batch() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(12, 3000, generator=generator) * 3
    params = [
        replace(
            RANDOM,
            temperature=0.0 if n % 4 == 0 else 1.3,
            top_k=(0, 40)[n % 2],
            top_p=(1.0, 0.9)[n % 3 == 0],
            seed=n,
        )
        for n in range(12)
    ]
    positions = list(range(12))
    together = sample(logits, params, positions)
    for row in range(12):
        alone = sample(logits[row : row + 1], params[row : row + 1], positions[row : row + 1])
        assert alone[0] == together[row]
    order = torch.randperm(12, generator=generator)
    shuffled = sample(logits[order], [params[i] for i in order], [positions[i] for i in order])
    assert torch.equal(shuffled, together[order])


def test_global_random_state_is_neither_read_nor_moved() -> None:
    rows = [replace(RANDOM, seed=seed) for seed in range(20)]
    torch.manual_seed(1)
    first = sample(LOGITS.expand(20, -1), rows, [0] * 20)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(sample(LOGITS.expand(20, -1), rows, [0] * 20), first)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("params", [GREEDY, RANDOM])
def test_min_tokens_forbids_eos_and_stop_tokens(params: SamplingParams) -> None:
    logits = torch.full((6,), -20.0)
    logits[2], logits[4], logits[5] = 9.0, 8.0, 7.0
    waiting = replace(params, min_tokens=3, stop_token_ids=frozenset({4, 10_000}))
    before = logits.clone()
    drawn = [int(sample(logits[None], [waiting], [position], frozenset({2}))[0]) for position in range(5)]
    assert drawn[:3] == [5, 5, 5]
    if params is GREEDY:
        assert drawn[3:] == [2, 2]
    assert torch.equal(logits, before), "the caller's logits were changed"
    # A row beside it that need not wait is not held back.
    both = sample(logits.expand(2, -1), [waiting, GREEDY], [0, 0], frozenset({2}))
    assert both.tolist() == [5, 2]


def test_rows_and_params_must_match() -> None:
    with pytest.raises(ValueError, match="2 rows, 1 rules"):
        Sampler().sample(torch.zeros(2, 4), [rules_at(GREEDY, 0, 4)])


def test_no_rows() -> None:
    assert sample(torch.zeros(0, 4), [], []).tolist() == []


@pytest.mark.parametrize("vocab", [5003, 49_152])
@pytest.mark.parametrize("spread", [0.05, 3.0])
def test_rows_over_large_vocabularies_are_those_drawn_alone(vocab: int, spread: float) -> None:
    """Whatever stands beside them, wherever they lie in memory: the bits are the same."""
    logits = torch.randn(14, vocab, generator=torch.Generator().manual_seed(vocab)) * spread
    kinds: list[dict[str, Any]] = [
        {},
        {"top_p": 0.9},
        {"top_k": 300, "top_p": 0.999},
        {"min_p": 0.02},
        {"top_k": 20, "typical_p": 0.9},
        {"top_p": 0.9999, "min_p": 1e-5},
        {"temperature": 0.3},
    ]
    params = [replace(RANDOM, **{**kinds[row % 7], "seed": row}) for row in range(14)]
    together = sample(logits, params, [3] * 14)
    for row in range(14):
        assert int(sample(logits[row : row + 1], params[row : row + 1], [3])[0]) == int(together[row])
    # All of one kind fill a part of another size.
    for kind in range(7):
        same = [replace(RANDOM, **{**kinds[kind], "seed": row}) for row in range(14)]
        rows = [kind, kind + 7]
        both = sample(logits, same, [3] * 14)[rows]
        assert torch.equal(both, together[rows])


def test_the_bound_never_hides_the_winner() -> None:
    """Drawing over all logarithms gives the same token."""
    vocab = 20_000
    logits = (
        torch.randn(60, vocab, generator=torch.Generator().manual_seed(8)) * torch.linspace(0, 6, 60)[:, None]
    )
    rows = [replace(RANDOM, seed=seed) for seed in range(60)]
    keys = key_tensor([rules_at(params, 0, vocab).key for params in rows], logits.device)
    scores = logits - logits.amax(dim=-1, keepdim=True)
    values = scores - exponentials(keys, torch.arange(vocab)[None]).log()
    assert torch.equal(sample(logits, rows, [0] * 60), values.argmax(dim=-1))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.5, "logit_bias": ((1, 3.0),), "allowed_token_ids": frozenset({1, 3, 4})},
        {"top_k": 3},
        {"temperature": 1.7, "top_k": 6, "top_p": 0.95, "min_p": 0.05, "typical_p": 0.9},
    ],
)
def test_distributions_are_what_is_drawn_from(changes: dict[str, Any]) -> None:
    params = replace(RANDOM, **changes)
    logits = LOGITS.clone()
    for token_id, bias in params.logit_bias:
        logits[token_id] += bias
    if params.allowed_token_ids:
        logits[[token_id for token_id in range(8) if token_id not in params.allowed_token_ids]] = -torch.inf
    expected = processed(logits, params).float()
    rows = torch.stack([LOGITS, LOGITS.flip(0), LOGITS])
    before = rows.clone()
    mixed = [rules_at(own, 0, 8) for own in (params, replace(GREEDY, logit_bias=((0, 9.0),)), GREEDY)]
    told = Sampler().distributions(rows, mixed)
    torch.testing.assert_close(told.probabilities[0], expected)
    assert told.probabilities[1:].tolist() == torch.eye(8)[[0, 3]].tolist()
    assert torch.equal(rows, before)
    assert not told.stuck
    assert not told.not_numbers


def test_rows_without_a_distribution_are_named() -> None:
    stuck = replace(RANDOM, allowed_token_ids=frozenset({1}), bad_words=((1,),))
    rows = torch.stack([LOGITS, LOGITS, LOGITS])
    rows[2, 3] = torch.nan
    told = Sampler().distributions(rows, [rules_at(own, 0, 8) for own in (stuck, RANDOM, RANDOM)])
    assert (told.stuck, told.not_numbers) == ([0], [2])
    torch.testing.assert_close(told.probabilities[1], LOGITS.softmax(dim=-1))


@pytest.mark.parametrize("vocab", [8, 4000])
def test_draws_from_weights_are_in_their_proportion(vocab: int) -> None:
    """Weights that do not add up to 1, most of them 0."""
    weights = torch.zeros(vocab)
    weights[[1, 3, 4, 7]] = torch.tensor([0.2, 0.05, 0.15, 0.3])
    draws = 3000
    keys = [draw_key(seed, 0, 0, Purpose.RESIDUAL) for seed in range(draws)]
    tokens = torch.tensor(Drawer().draw_from(weights.expand(draws, -1), keys))
    counts = torch.bincount(tokens, minlength=vocab).double()
    expected = weights.double() / weights.sum() * draws
    possible = expected > 0
    assert not counts[~possible].any()
    assert float(((counts - expected)[possible] ** 2 / expected[possible]).sum()) < CHI_SQUARE[3]
    assert Drawer().draw_from(weights[None], keys[:1]) == tokens[:1].tolist()
