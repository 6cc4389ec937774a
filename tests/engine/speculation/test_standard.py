"""The standard rule accepts as often as it may: with 1 - |p - q| for drawn drafts, with p for chosen ones."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from engine.sampling.rules import TokenRules
from engine.sampling.sampler import Sampler
from engine.speculation.tree import DraftTree
from engine.speculation.verification.base import Bounds, Pending
from engine.speculation.verification.registry import create_verifier
from tests.engine.sampling_rows import GREEDY
from tests.engine.speculation import small_drafters
from tests.engine.speculation.small_target import (
    EOS_IDS,
    PROMPT,
    SmallTarget,
    distribution,
    generate,
    rules_for,
)

PARAMS = replace(GREEDY, temperature=1.0, ignore_eos=True, max_tokens=1)
TARGET = SmallTarget(7, seed=1)
PASSES = 2000


def accepted_share(draft_tree: DraftTree | None, drafter: object = None, **changes: object) -> float:
    """Of first tokens over many seeds that are drafts."""
    params = [replace(PARAMS, seed=seed, **changes) for seed in range(PASSES)]

    def fixed(*_: object) -> DraftTree | None:
        return draft_tree

    _, passes = generate("standard", TARGET, drafter or fixed, params)  # type: ignore[arg-type]
    return sum(1 for each in passes if each.path) / PASSES


def within(share: float, expected: float) -> bool:
    """Five standard deviations."""
    return abs(share - expected) <= 5 * math.sqrt(max(expected * (1 - expected), 1e-9) / PASSES)


@pytest.mark.parametrize(("temperature", "shift"), [(3.0, 0.0), (0.3, 4.0), (1.0, 1.0)])
def test_drawn_drafts(temperature: float, shift: float) -> None:
    p = distribution(TARGET, PARAMS, ())
    logits = TARGET.logits(PROMPT) / temperature
    logits[2] += shift
    expected = float(torch.minimum(p, logits.double().softmax(-1)).sum())

    def draft(
        target: SmallTarget, tokens: Sequence[int], _rules: TokenRules, random_: random.Random
    ) -> DraftTree:
        return small_drafters.drawn_chain(target, tokens, random_, temperature, shift)

    assert within(accepted_share(None, draft), expected)


@pytest.mark.parametrize("top_k", [0, 3])
def test_chosen_drafts_one_or_several(top_k: int) -> None:
    p = distribution(TARGET, replace(PARAMS, top_k=top_k), ())
    order = p.argsort(descending=True).tolist()
    for token_ids in ((order[0],), (order[-1], order[1], order[0]), tuple(order)):
        share = accepted_share(DraftTree(token_ids, (0,) * len(token_ids)), top_k=top_k)
        assert within(share, min(1.0, float(p[list(token_ids)].sum())))


def test_a_draft_model_that_is_the_target_is_never_refused() -> None:
    params = [replace(PARAMS, seed=seed, max_tokens=4) for seed in range(300)]
    _, passes = generate("standard", TARGET, small_drafters.equal, params)
    assert {len(each.path) for each in passes} == {small_drafters.DEPTH}


@pytest.mark.parametrize("axis", ["seed", "choice"])
def test_another_choice_is_another_draw_as_another_seed_is(axis: str) -> None:
    p = distribution(TARGET, PARAMS, ())
    tree = DraftTree.chain((int(p.argmax()),))
    rules = [rules_for(replace(PARAMS, **{axis: value}), 7) for value in range(PASSES)]
    rows = TARGET.rows(PROMPT, tree)
    verifier = create_verifier("standard", Sampler(), Bounds(EOS_IDS, 1000))
    outcomes = verifier.verify(rows, [Pending(own, len(PROMPT), tree, 0) for own in rules])
    assert within(sum(1 for each in outcomes if each.path) / PASSES, float(p.max()))
