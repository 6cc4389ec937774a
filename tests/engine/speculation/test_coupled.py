"""Coupled verification: a seed gives the same tokens with any drafter and with none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import SamplingParams
from engine.sampling.rules import TokenRules
from engine.sampling.sampler import Sampler
from engine.speculation.tree import DraftTree
from tests.engine.sampling_rows import GREEDY
from tests.engine.speculation import small_drafters
from tests.engine.speculation.small_target import PROMPT, SmallTarget, ends, generate, rules_for

VOCAB = 5
TARGET = SmallTarget(VOCAB, seed=4, spread=0.7)
token_ids = st.integers(0, VOCAB - 1)

every_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.4, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    top_k=st.sampled_from([0, 2, 4]),
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 2),
    max_tokens=st.integers(1, 9),
    min_tokens=st.integers(0, 3),
    stop_token_ids=st.sampled_from([frozenset(), frozenset({4})]),
    ignore_eos=st.booleans(),
    min_p=st.sampled_from([0.0, 0.1]),
    typical_p=st.sampled_from([1.0, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
    logit_bias=st.sampled_from([(), ((1, 1.0), (2, -1.0))]),
    bad_words=st.sampled_from([(), ((2, 1), (3,))]),
    logprobs=st.sampled_from([None, 1]),
)


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Any tree of up to 16 drafts."""
    drafts: dict[tuple[int, int], None] = {}
    for _ in range(draw(st.integers(1, 16))):
        drafts.setdefault((draw(st.integers(0, len(drafts))), draw(token_ids)))
    return DraftTree(tuple(token for _, token in drafts), tuple(parent for parent, _ in drafts))


def plainly(params: SamplingParams) -> tuple[int, ...]:
    """A token at a time from the sampler, as without any speculation."""
    rules, sampler = rules_for(params, VOCAB), Sampler()
    answer: tuple[int, ...] = ()
    while not answer or ends(params, answer) is None:
        (token_id,) = sampler.sample(TARGET.logits([*PROMPT, *answer])[None], [rules]).token_ids
        rules.advance(token_id)
        answer = (*answer, token_id)
    return answer


@settings(max_examples=150, deadline=None)
@given(st.lists(every_params, min_size=1, max_size=4), st.lists(st.none() | trees(), min_size=1, max_size=6))
def test_any_trees_give_the_tokens_that_none_gives(
    params: list[SamplingParams], given_trees: list[DraftTree | None]
) -> None:
    def draft(
        _target: SmallTarget, tokens: Sequence[int], rules: TokenRules, _random: random.Random
    ) -> DraftTree | None:
        return given_trees[(len(tokens) + rules.params.choice) % len(given_trees)]

    answers, _ = generate("coupled", TARGET, draft, params)
    assert answers == [plainly(own) for own in params]


def test_every_kind_of_drafter_gives_the_same_tokens() -> None:
    params = [
        replace(GREEDY, temperature=1.0, seed=seed, max_tokens=20, ignore_eos=True) for seed in range(40)
    ]
    expected = [plainly(own) for own in params]
    for draft in small_drafters.ALL:
        assert generate("coupled", TARGET, draft, params)[0] == expected


def test_drafters_that_share_the_noise_are_accepted_more_often() -> None:
    """Against the same blurred distribution drawn apart: sum of p * q, the chance of drawing alike."""
    target = SmallTarget(8, seed=2)
    params = [
        replace(GREEDY, temperature=1.0, seed=seed, max_tokens=30, ignore_eos=True) for seed in range(150)
    ]
    answers, passes = generate("coupled", target, small_drafters.coupled, params)
    accepted = sum(1 for each in passes if each.path) / len(passes)
    apart = []
    for answer in answers:
        for index in range(len(answer)):
            logits = target.logits([*PROMPT, *answer[:index]])
            apart.append(float((logits.softmax(-1) * (logits * 0.7).softmax(-1)).sum()))
    assert accepted > 0.75 > 2 * torch.tensor(apart).mean()
