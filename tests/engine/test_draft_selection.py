"""Drafts that are verified because of how sure their drafter is of them, and those that are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.confidence import ConfidenceCalibration
from engine.speculation.planner import FixedPlanner
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
    unlike,
)

COSTS = {"flat": flat, "linear": linear}

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


@pytest.mark.parametrize("cost", ["flat", "linear"])
@pytest.mark.parametrize("sure", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("right", [0.0, 0.6, 0.95])
def test_drafters_that_are_always_as_sure(cost: str, sure: float, right: float) -> None:
    """What they tell is worth nothing: no reason to be slower."""
    world = World(
        COSTS[cost], lambda number: Text(lambda place: right, says=lambda chance: sure), lambda tokens: 8
    )
    require_fast(world, answers_for(8))


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
