"""A head that has the model's own logits guesses the model's own draws."""

from __future__ import annotations

import pytest
import torch

from engine.api import SamplingParams
from engine.sampling.rules import TokenRules
from engine.sampling.sampler import Sampler
from engine.speculation.eagle.head import EagleHead
from engine.speculation.guesses import guess, likeliest
from tests.support.markov import VOCAB, knowing_head, markov_model

ROWS = 400


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> EagleHead:
    folder = tmp_path_factory.mktemp("markov")
    return knowing_head(folder / "head", markov_model(folder / "model"))


def rules_of(row: int, **params: float) -> TokenRules:
    values = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, **params}
    own = SamplingParams(seed=row, choice=row % 3, max_tokens=10, **values)
    return TokenRules(own, (1, 2), tuple(range(row % 5)), frozenset(), VOCAB)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 2.5},
        {"top_k": 3},
        {"top_p": 0.6},
        {"min_p": 0.4},
        {"top_k": 8, "top_p": 0.7, "temperature": 1.5},
        {"temperature": 0.0},
    ],
    ids=str,
)
def test_draws_are_guessed(head: EagleHead, params: dict[str, float]) -> None:
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(0)) * 2
    rules = [rules_of(row, **params) for row in range(ROWS)]
    drawn = torch.tensor(Sampler().sample(logits, rules).token_ids)
    guesses = guess(head, logits, rules, [0] * ROWS, 4, coupled=True)
    assert torch.equal(guesses.token_ids[:, 0], drawn)
    assert bool((guesses.log_probs <= 0).all())
    assert torch.equal(guesses.log_probs, guesses.log_probs.sort(dim=-1, descending=True).values)
    assert len(guesses.token_ids[0].unique()) == 4


def test_draws_of_later_tokens_are_guessed(head: EagleHead) -> None:
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(1))
    ahead = [row % 4 for row in range(ROWS)]
    now = [rules_of(row) for row in range(ROWS)]
    later = [rules_of(row) for row in range(ROWS)]
    for rule, count in zip(later, ahead, strict=True):
        for token in range(count):
            rule.advance(token)
    drawn = torch.tensor(Sampler().sample(logits, later).token_ids)
    assert torch.equal(guess(head, logits, now, ahead, 1, coupled=True).token_ids[:, 0], drawn)


def test_uncoupled_draws_are_best_guessed_by_the_likeliest(head: EagleHead) -> None:
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(2))
    rules = [rules_of(row) for row in range(ROWS)]
    guesses = guess(head, logits, rules, [0] * ROWS, 3, coupled=False)
    best = likeliest(head, logits)
    assert torch.equal(guesses.token_ids[:, :1], best.token_ids)
    torch.testing.assert_close(guesses.log_probs[:, :1], best.log_probs)
    torch.testing.assert_close(guesses.log_probs, logits.log_softmax(dim=-1).topk(3).values)


def test_a_seed_of_ones_own_is_guessed_with_whatever_rule_the_others_have(head: EagleHead) -> None:
    """By request, side by side: those that are verified by their seed are guessed by it."""
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(3))
    rules = [rules_of(row, own_seed=row % 3 == 0) for row in range(ROWS)]
    drawn = torch.tensor(Sampler().sample(logits, rules).token_ids)
    best = likeliest(head, logits).token_ids[:, 0]
    seeded = torch.tensor([rule.params.own_seed for rule in rules])
    guesses = guess(head, logits, rules, [0] * ROWS, 1, coupled=False).token_ids[:, 0]
    assert torch.equal(guesses, torch.where(seeded, drawn, best))
    assert not torch.equal(drawn[seeded], best[seeded])
