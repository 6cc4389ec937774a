"""What is kept of drawn rows: made once for a batch, made anew when the batch changes, and then let go."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.parts import PartsOfSteps
from engine.sampling.rules import TokenRules
from engine.sampling.sampler import Sampler
from tests.engine.sampling_rows import GREEDY, rules_at

VOCAB = 300
LOGITS = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(3)) * 3
RANDOM = replace(GREEDY, temperature=0.9)
KINDS = (
    GREEDY,
    RANDOM,
    replace(RANDOM, top_k=5),
    replace(RANDOM, top_p=0.7, temperature=1.8),
    replace(RANDOM, min_p=0.1, typical_p=0.8),
    replace(RANDOM, presence_penalty=1.5),
    replace(RANDOM, top_k=9, frequency_penalty=0.5),
)


def test_parts_of_the_same_rows_are_made_once() -> None:
    parts = PartsOfSteps(chunk_elements=2 * VOCAB)
    rules = [rules_at(params, 0, VOCAB) for params in (RANDOM, KINDS[2], RANDOM, RANDOM)]
    parts.begin()
    first = parts.of([1, 4, 5, 7], rules, LOGITS)
    assert [part.places for part in first] == [(0, 2), (3,), (1,)]
    assert [part.rows.tolist() for part in first] == [[1, 5], [7], [4]]
    assert [part.limits is None for part in first] == [True, True, False]
    parts.begin()
    assert parts.of([1, 4, 5, 7], list(rules), LOGITS) is first
    parts.begin()
    assert parts.of([1, 4, 5, 6], rules, LOGITS) is not first
    parts.begin()
    others = [*rules[:3], rules_at(RANDOM, 0, VOCAB)]
    assert parts.of([1, 4, 5, 6], others, LOGITS)[0].rows.tolist() == [1, 5]
    parts.begin()
    narrow = parts.of([1, 4, 5, 6], others, LOGITS[:, :100])
    assert [part.places for part in narrow] == [(0, 2, 3), (1,)], "a smaller vocabulary has larger parts"


def test_rules_of_sequences_that_are_gone_are_let_go() -> None:
    parts = PartsOfSteps(chunk_elements=VOCAB)

    class Rules(TokenRules):
        __slots__ = ("__weakref__",)

    rules = Rules(RANDOM, (0,), (), frozenset(), VOCAB)
    gone = weakref.ref(rules)
    parts.begin()
    parts.of([0], [rules], LOGITS)
    del rules
    parts.begin()
    parts.begin()
    gc.collect()
    assert gone() is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, len(KINDS) - 1), min_size=1, max_size=8), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), min_size=2, max_size=8),
)
def test_what_was_drawn_before_changes_no_draw(batches: list[list[int]], order: list[int]) -> None:
    """One sampler through changing batches gives each step the tokens that a new one gives."""
    kept = [
        [rules_at(replace(KINDS[kind], seed=row), 0, VOCAB) for row, kind in enumerate(batch)]
        for batch in batches
    ]
    sampler = Sampler()
    for which in order:
        rules = kept[which % len(kept)]
        logits = LOGITS[: len(rules)]
        tokens = sampler.sample(logits, rules).token_ids
        assert tokens == Sampler().sample(logits, rules).token_ids
        for rule, token_id in zip(rules, tokens, strict=True):
            rule.advance(token_id)
