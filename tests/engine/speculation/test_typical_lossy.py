"""Typical acceptance takes what is likely enough, says that it is lossy, and draws where nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.sampling.sampler import Sampler
from engine.speculation.tree import DraftTree
from engine.speculation.verification.base import Bounds, Pending
from engine.speculation.verification.registry import create_verifier
from tests.engine.sampling_rows import GREEDY
from tests.engine.speculation.small_target import rules_for

BOUNDS = Bounds(frozenset(), 1000)
DRAWN = replace(GREEDY, temperature=1.0, top_k=0, top_p=1.0, ignore_eos=True)


def accepted(probabilities: list[float], drafts: list[int], **changes: float) -> list[int]:
    """For each of 40 seeds the draft that was accepted, or -1."""
    logits = torch.tensor(probabilities).log().repeat(len(drafts) + 1, 1)
    tree = DraftTree(tuple(drafts), (0,) * len(drafts))
    found = []
    for seed in range(40):
        rules = rules_for(replace(DRAWN, seed=seed, **changes), len(probabilities))
        verifier = create_verifier("typical_lossy", Sampler(), BOUNDS)
        (verified,) = verifier.verify(logits, [Pending(rules, 3, tree, 0)])
        found.append(verified.token_ids[0] if verified.path else -1)
    return found


def test_it_says_that_it_is_lossy() -> None:
    assert not create_verifier("typical_lossy", Sampler(), BOUNDS).lossless


@pytest.mark.parametrize(
    ("probabilities", "least"),
    [
        # The entropy of the first is 0.5 nats, of the second ln 5.
        ([0.85, 0.1, 0.05, 0.0, 0.0], 0.09),
        ([0.2, 0.2, 0.2, 0.2, 0.2], 0.3 / 5),
        ([0.9, 0.05, 0.02, 0.02, 0.01], 0.09),
    ],
)
def test_a_draft_is_taken_where_it_is_likely_enough(probabilities: list[float], least: float) -> None:
    for token_id, probability in enumerate(probabilities):
        found = accepted(probabilities, [token_id])
        if probability > least:
            assert found == [token_id] * len(found), "whatever would have been drawn"
        else:
            # Now and then what is drawn is the draft.
            assert found.count(token_id) <= len(found) // 4


def test_siblings_are_tried_in_their_order() -> None:
    assert set(accepted([0.0, 0.4, 0.4, 0.2, 0.0], [0, 2, 1])) == {2}


def test_what_truncation_cuts_off_is_not_taken() -> None:
    assert set(accepted([0.5, 0.3, 0.2], [2], top_k=2)) == {-1}
    assert set(accepted([0.5, 0.3, 0.2], [2])) == {2}
