"""Edits of logits: equal to transformers' and to vLLM's formulas, and a function of the tokens alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from engine.api import SamplingParams
from engine.sampling import limits
from engine.sampling.processors import edit
from engine.sampling.rules import TokenRules
from engine.sampling.sampler import Sampler
from tests.engine.sampling_rows import GREEDY

VOCAB = 40
EOS = frozenset({7})
tokens = st.integers(0, VOCAB - 1)
texts = st.lists(tokens, max_size=12)


def edited(logits: torch.Tensor, rules: list[TokenRules]) -> torch.Tensor:
    own = logits.clone()
    edit(own, rules, None)
    return own


def rules_of(params: SamplingParams, prompt: list[int], answer: list[int]) -> TokenRules:
    limits.check(params, VOCAB)
    return TokenRules(params, prompt, answer, EOS, VOCAB)


def logits_of(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 999),
    prompt=st.lists(tokens, min_size=1, max_size=12),
    answer=texts,
    penalty=st.floats(0.1, 3.0),
)
def test_repetition_penalty_is_transformers(
    seed: int, prompt: list[int], answer: list[int], penalty: float
) -> None:
    logits = logits_of(seed)
    rules = rules_of(replace(GREEDY, repetition_penalty=penalty), prompt, answer)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + answer]), logits)
    torch.testing.assert_close(edited(logits, [rules]), expected)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 999),
    prompt=st.lists(tokens, min_size=1),
    answer=texts,
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
)
def test_frequency_and_presence_count_the_answer_alone(
    seed: int, prompt: list[int], answer: list[int], frequency: float, presence: float
) -> None:
    logits = logits_of(seed)
    params = replace(GREEDY, frequency_penalty=frequency, presence_penalty=presence)
    counts = torch.bincount(torch.tensor(answer, dtype=torch.int64), minlength=VOCAB).float()
    expected = logits - frequency * counts - presence * (counts > 0)
    torch.testing.assert_close(edited(logits, [rules_of(params, prompt, answer)]), expected)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 999),
    answer=st.lists(st.integers(0, 3), max_size=8),
    words=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=5),
)
def test_bad_words_are_transformers_over_the_answer(
    seed: int, answer: list[int], words: list[list[int]]
) -> None:
    logits = logits_of(seed)
    # The prompt ends with what could begin any of them: it does not count.
    rules = rules_of(replace(GREEDY, bad_words=tuple(map(tuple, words))), [0, 1, 2, 3], answer)
    # It does not look at sequences without tokens; 39 stands in no bad word.
    ids = torch.tensor([[39, *answer]])
    expected = NoBadWordsLogitsProcessor(words)(ids, logits)
    assert torch.equal(edited(logits, [rules]), expected)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 999), bias=st.dictionaries(tokens, st.floats(-100, 100, width=32), min_size=1))
def test_logit_bias_is_transformers(seed: int, bias: dict[int, float]) -> None:
    logits = logits_of(seed)
    rules = rules_of(replace(GREEDY, logit_bias=tuple(bias.items())), [1], [])
    expected = SequenceBiasLogitsProcessor([[[name], value] for name, value in bias.items()])(
        torch.tensor([[1]]), logits
    )
    torch.testing.assert_close(edited(logits, [rules]), expected)


@pytest.mark.parametrize("position", [0, 2, 3, 4])
def test_min_tokens_is_transformers(position: int) -> None:
    logits = logits_of(1)
    rules = rules_of(replace(GREEDY, min_tokens=3, stop_token_ids=frozenset({9})), [1, 2], [5] * position)
    processor = MinNewTokensLengthLogitsProcessor(2, 3, [7, 9], device="cpu")
    expected = processor(torch.tensor([[1, 2] + [5] * position]), logits)
    assert torch.equal(edited(logits, [rules]), expected)
    assert rules.edits == (position < 3)


def test_allowed_ids_are_all_that_is_left() -> None:
    logits = logits_of(2)
    left = edited(logits, [rules_of(replace(GREEDY, allowed_token_ids=frozenset({3, 30})), [1], [])])
    assert (left[0] > -torch.inf).nonzero().flatten().tolist() == [3, 30]
    assert torch.equal(left[0, [3, 30]], logits[0, [3, 30]])


def test_the_order_is_masks_and_bias_before_penalties() -> None:
    """A bias that turns a logit's sign decides how the repetition penalty works."""
    logits = torch.zeros(1, VOCAB)
    logits[0, 3] = -2.0
    params = replace(GREEDY, logit_bias=((3, 6.0),), repetition_penalty=2.0, presence_penalty=1.0)
    assert float(edited(logits, [rules_of(params, [1], [3])])[0, 3]) == (-2.0 + 6.0) / 2.0 - 1.0


params_of_all = st.fixed_dictionaries(
    {
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.7]),
        "presence_penalty": st.sampled_from([0.0, 1.5]),
        "frequency_penalty": st.sampled_from([0.0, -0.5]),
        "logit_bias": st.sampled_from([(), ((4, 2.0), (1, -3.5))]),
        "bad_words": st.sampled_from([(), ((2,), (3, 4), (3, 3, 3))]),
        "allowed_token_ids": st.sampled_from([frozenset(), frozenset(range(0, VOCAB, 2))]),
        "min_tokens": st.sampled_from([0, 5]),
        "temperature": st.sampled_from([0.0, 0.8, 1.5]),
        "top_k": st.sampled_from([0, 1, 6]),
        "top_p": st.sampled_from([1.0, 0.7]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "typical_p": st.sampled_from([1.0, 0.6]),
        "logprobs": st.sampled_from([None, 0, 3]),
        "seed": st.integers(0, 5),
    }
)
Row = tuple[dict[str, Any], list[int], list[int]]
rows = st.tuples(params_of_all, st.lists(tokens, min_size=1, max_size=6), texts)


@settings(max_examples=120, deadline=None)
@given(batch=st.lists(rows, min_size=1, max_size=9), seed=st.integers(0, 99))
def test_no_row_depends_on_another(batch: list[Row], seed: int) -> None:
    logits = logits_of(seed, len(batch))
    before = logits.clone()
    rules = [rules_of(replace(GREEDY, **changes), prompt, answer) for changes, prompt, answer in batch]
    together = Sampler().sample(logits, rules)
    assert torch.equal(logits, before), "the caller's logits were changed"
    for row, rule in enumerate(rules):
        alone = Sampler().sample(logits[row : row + 1], [rule])
        assert alone.token_ids[0] == together.token_ids[row]
        assert alone.logprobs.get(0) == together.logprobs.get(row)
        assert bool(alone.stuck) == (row in together.stuck)


@settings(max_examples=120, deadline=None)
@given(row=rows, detours=st.lists(st.lists(tokens, max_size=4), max_size=6), seed=st.integers(0, 99))
def test_what_is_tried_and_taken_back_leaves_no_trace(row: Row, detours: list[list[int]], seed: int) -> None:
    changes, prompt, answer = row
    params = replace(GREEDY, **changes)
    rules = rules_of(params, prompt, [])
    for index, token_id in enumerate(answer):
        if index < len(detours):
            for other in detours[index]:
                rules.advance(other)
            rules.rollback(len(detours[index]))
        rules.advance(token_id)
    fresh = rules_of(params, prompt, answer)
    logits = logits_of(seed)
    assert rules.position == fresh.position
    assert rules.key == fresh.key
    assert torch.equal(edited(logits, [rules]), edited(logits, [fresh]))


def test_a_row_with_nothing_left_is_stuck_alone() -> None:
    stuck = rules_of(
        replace(GREEDY, allowed_token_ids=frozenset({5}), bad_words=((5,),), logprobs=1), [1], []
    )
    plain = rules_of(replace(GREEDY, logprobs=1), [1], [])
    sampled = Sampler().sample(logits_of(4, 2), [stuck, plain])
    assert sampled.stuck == [0]
    assert set(sampled.logprobs) == {1}


@pytest.mark.parametrize("top_p", [1.0, 0.5])
@pytest.mark.parametrize("penalty", [1e-38, 3e38])
def test_penalties_however_far_off_leave_something_to_draw_from(top_p: float, penalty: float) -> None:
    params = replace(GREEDY, temperature=1.0, top_p=top_p, repetition_penalty=penalty, logprobs=1)
    logits = logits_of(6)
    seen = logits[0].topk(logits.shape[1] // 2).indices.tolist()
    sampled = Sampler().sample(logits, [rules_of(params, seen, [])])
    assert not sampled.not_numbers
    assert not sampled.stuck
    (token_id,) = sampled.token_ids
    assert token_id in seen if penalty < 1 else token_id < logits.shape[1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_that_are_not_numbers_are_named(value: float) -> None:
    logits = logits_of(5, 3)
    logits[1, 17] = value
    rows = [rules_of(replace(GREEDY, temperature=t, logprobs=0), [1], []) for t in (0.0, 1.0, 1.0)]
    sampled = Sampler().sample(logits, rows)
    assert sampled.not_numbers == [1]
    assert set(sampled.logprobs) == {0, 2}
