"""Drafts that are verified because of how sure their drafter is of them, and those that are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.api import EngineRequest, SamplingParams
from engine.sequence import Sequence
from engine.speculation.allocation import Allocation
from engine.speculation.confidence import ConfidenceCalibration
from engine.speculation.plan import Mode, Plan, Share
from engine.speculation.planner import DraftOutcome, FixedPlanner
from engine.speculation.selection import DraftSelection
from engine.speculation.tree import DraftTree
from tests.engine.speculation_bench import (
    Text,
    World,
    answers_for,
    flat,
    linear,
    planner_of,
    require_fast,
    rising,
    run,
    stepped,
    unlike,
)

COSTS = {cost.__name__: cost for cost in (flat, linear, rising, stepped)}

SAYINGS = {
    "true": lambda chance: chance,
    "too sure": lambda chance: chance**0.4,
    "too doubtful": lambda chance: chance**2,
}


@pytest.mark.parametrize("says", SAYINGS)
@pytest.mark.parametrize("batch", [4, 16, 32])
def test_drafters_that_tell_how_sure_they_are(batch: int, says: str) -> None:
    """Whatever scale they use, the likely drafts are verified alone: better than any fixed number."""

    def text(number: int) -> Text:
        chances = unlike(number)
        return Text(lambda place: chances[place], says=SAYINGS[says])

    world = World(rising, text, lambda tokens: batch, draft_s=0.0004)
    adaptive = run(world, planner_of(world), answers_for(batch))
    best = max(run(world, FixedPlanner(count), answers_for(batch)).rate for count in range(world.most + 1))
    assert adaptive.rate > (1.03 if batch == 4 else 1.06) * best


@pytest.mark.parametrize("says", SAYINGS)
@pytest.mark.parametrize("batch", [4, 16])
def test_trees_that_tell_how_sure_they_are(batch: int, says: str) -> None:
    def text(number: int) -> Text:
        chances = unlike(number)
        return Text(lambda place: chances[place], says=SAYINGS[says])

    require_fast(
        World(rising, text, lambda tokens: batch, most=15, tree=True), answers_for(batch), (0, 1, 2, 4, 9)
    )


@pytest.mark.parametrize(("cost", "batch"), [("flat", 8), ("linear", 8), ("stepped", 8), ("rising", 16)])
@pytest.mark.parametrize("sure", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("right", [0.0, 0.6, 0.95])
def test_drafters_that_are_always_as_sure(cost: str, batch: int, sure: float, right: float) -> None:
    """What they tell is worth nothing: no reason to be slower, nor never to look what it is worth."""

    def text(number: int) -> Text:
        return Text(lambda place: right, says=lambda chance: sure)

    require_fast(World(COSTS[cost], text, lambda tokens: batch), answers_for(batch))


def planned(arrivals: range, **changes: object) -> tuple[list[Sequence], Plan]:
    """Requests, and a plan by which no draft is worth its price."""
    share = Share(1, 1.1, (0.0, 0.1, 0.2), (0.1, 0.1))
    shares = dict.fromkeys(arrivals, share)
    allocation = Allocation((1,) * len(arrivals), (1.1,) * len(arrivals), 1.0, seconds=1.0)
    plan = Plan(allocation=allocation, shares=shares, pass_s=np.arange(100.0))
    sampling = SamplingParams(1.0, 1.0, 0, 0, 0, max_tokens=9)
    sequences = [Sequence(EngineRequest(str(own), (1,), sampling), own, False, 0.0) for own in arrivals]
    return sequences, replace(plan, **changes)


def test_what_was_drawn_does_not_decide_what_is_verified() -> None:
    """Chains that end where a stop token was drawn, too: else such tokens would come too seldom."""
    sequences, plan = planned(range(2))
    chains = [DraftTree.chain((1,) * count, torch.ones(count, 2) / 2) for count in (1, 2)]
    assert DraftSelection().kept(plan, 1.0, sequences, [2, 2], chains) == [1, 2]
    chosen = [DraftTree.chain((1,) * count) for count in (1, 2)]
    assert DraftSelection().kept(plan, 1.0, sequences, [2, 2], chosen) == [0, 0]


def test_probes_and_retries_are_verified_whatever_they_cost() -> None:
    silent, telling = DraftTree.chain((1,)), DraftTree.chain((1,), confidence=(0.5,))
    selection = DraftSelection()
    sequences, plan = planned(range(2))
    for _ in range(20):
        selection.observe([DraftOutcome(sequences[1], 1, telling)])
    trees = [silent, telling]
    assert selection.kept(plan, 1.0, sequences, [1, 1], trees) == [0, 0]
    assert selection.kept(replace(plan, retried=frozenset([1])), 1.0, sequences, [1, 1], trees) == [0, 1]
    assert selection.kept(replace(plan, verifies_all=True), 1.0, sequences, [1, 1], trees) == [1, 1]
    # A probe while others draft is one of how they would draft.
    assert selection.kept(replace(plan, mode=Mode.PROBE_DRAFTS), 1.0, sequences, [1, 1], trees) == [1, 0]


def test_drafters_are_told_apart_and_drawn_answers_from_greedy_ones() -> None:
    (drawn, other), plan = planned(range(2), pass_s=np.zeros(100))
    greedy = Sequence(
        EngineRequest("g", (1,), replace(drawn.request.sampling, temperature=0.0)), 1, False, 0.0
    )
    other.drafter = object()  # type: ignore[assignment] # told apart alone
    tree = DraftTree.chain((1,), confidence=(0.5,))
    selection = DraftSelection()
    for _ in range(20):
        selection.observe([DraftOutcome(drawn, 1, tree)])
    costly = replace(plan, pass_s=np.arange(0.0, 30.0, 0.3))
    for sequence, count in ((drawn, 0), (other, 1), (greedy, 1)):
        assert selection.kept(costly, 1.0, [sequence], [1], [tree]) == [count]


def test_what_is_said_is_brought_to_what_comes_of_it() -> None:
    """What was never said is not known: as likely as what is surer, for a try."""
    calibration = ConfidenceCalibration()
    for number in range(400):
        calibration.observe(0.93, number % 20 < 9)
        calibration.observe(0.55, number % 20 < 5)
    chances = calibration.chances([0.93, 0.55, 0.25])
    assert chances[0] == pytest.approx(0.45, abs=0.02)
    assert chances[1] == chances[2] == pytest.approx(0.25, abs=0.02)
    for _ in range(3000):
        calibration.step()
    assert calibration.chances([0.93, 0.55, 0.25]) == [1.0] * 3, "forgotten, so tried again"


@given(
    tests=st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans()), max_size=200),
    confidence=st.lists(st.floats(0.0, 1.0), max_size=20),
)
def test_chances_are_chances_and_never_rise(tests: list[tuple[float, bool]], confidence: list[float]) -> None:
    calibration = ConfidenceCalibration()
    for said, right in tests:
        calibration.observe(said, right)
    chances = calibration.chances(sorted(confidence, reverse=True))
    assert len(chances) == len(confidence)
    assert all(0.0 <= chance <= 1.0 for chance in chances)
    assert chances == sorted(chances, reverse=True)
