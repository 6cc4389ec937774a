"""Sampling: exact distributions, reproducible draws, nothing shared between rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.api import SamplingParams
from engine.sampling.sampler import candidates, sample

GREEDY = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, seed=0, choice=0, max_tokens=10)
RANDOM = replace(GREEDY, temperature=1.0)
LOGITS = torch.tensor([1.2, -0.3, 0.0, 2.0, 0.9, -1.5, 1.9, -4.0])
# (degrees of freedom) -> value exceeded once in 10**6 fair runs; the seeds are fixed.
CHI_SQUARE = {1: 24.0, 2: 27.7, 3: 30.7, 4: 33.4, 5: 35.9, 6: 38.3, 7: 40.6}


def processed(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Exact probabilities after transformers' own processors, in the order of its generate()."""
    steps = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k:
        steps.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        steps.append(TopPLogitsWarper(params.top_p))
    return torch.softmax(steps(torch.zeros(1, 0), logits[None].double())[0], dim=-1)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, 0, 1.0),
        (0.5, 0, 1.0),
        (2.5, 0, 1.0),
        (1.0, 3, 1.0),
        (1.0, 0, 0.6),
        (0.8, 5, 0.9),
        (1.7, 6, 0.85),
        (1.0, 100, 0.999999),
    ],
)
@pytest.mark.parametrize("axis", ["seed", "position", "choice"])
def test_distribution(temperature: float, top_k: int, top_p: float, axis: str) -> None:
    draws = 3000
    params = replace(RANDOM, temperature=temperature, top_k=top_k, top_p=top_p, seed=77)
    rows = [replace(params, **({axis: n} if axis != "position" else {})) for n in range(draws)]
    positions = list(range(draws)) if axis == "position" else [4] * draws
    tokens = sample(LOGITS.expand(draws, -1), rows, positions, frozenset())
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
    params = replace(RANDOM, temperature=0.9, top_k=top_k, top_p=top_p)
    token_ids, scores = candidates(logits, params)
    expected = processed(logits, params)
    wanted = torch.nonzero(expected).squeeze(-1)
    # One token at the edge of the nucleus may fall on either side by rounding of its mass.
    assert len(set(token_ids.tolist()) ^ set(wanted.tolist())) <= (1 if top_p < 1 else 0)
    torch.testing.assert_close(
        torch.softmax(scores.double(), dim=0), expected[token_ids], atol=1e-4, rtol=1e-3
    )


def test_greedy_takes_the_lowest_of_equal_tokens() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 1.0, 5.0, 5.0]])
    assert sample(logits, [GREEDY] * 2, [0, 0], frozenset()).tolist() == [1, 0]


def test_tiny_temperatures_and_top_k_one_are_greedy() -> None:
    for params in (replace(GREEDY, temperature=1e-6), replace(RANDOM, top_k=1)):
        rows = [replace(params, seed=seed) for seed in range(50)]
        assert sample(LOGITS.expand(50, -1), rows, [0] * 50, frozenset()).tolist() == [3] * 50


def test_small_temperature_does_not_overflow() -> None:
    rows = [replace(RANDOM, temperature=2e-5, seed=seed) for seed in range(50)]
    logits = LOGITS.expand(50, -1) * 1e4
    assert sample(logits, rows, [0] * 50, frozenset()).tolist() == [3] * 50


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
    together = sample(logits, params, positions, frozenset())
    for row in range(12):
        alone = sample(logits[row : row + 1], params[row : row + 1], positions[row : row + 1], frozenset())
        assert alone[0] == together[row]
    order = torch.randperm(12, generator=generator)
    shuffled = sample(logits[order], [params[i] for i in order], [positions[i] for i in order], frozenset())
    assert torch.equal(shuffled, together[order])


def test_global_random_state_is_neither_read_nor_moved() -> None:
    rows = [replace(RANDOM, seed=seed) for seed in range(20)]
    torch.manual_seed(1)
    first = sample(LOGITS.expand(20, -1), rows, [0] * 20, frozenset())
    state = torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(sample(LOGITS.expand(20, -1), rows, [0] * 20, frozenset()), first)
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
    with pytest.raises(ValueError, match="2 rows, 1 params, 2 positions"):
        sample(torch.zeros(2, 4), [GREEDY], [0, 0], frozenset())


def test_no_rows() -> None:
    assert sample(torch.zeros(0, 4), [], [], frozenset()).tolist() == []
