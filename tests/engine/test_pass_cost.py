"""What the operating point learns of costs: of the target's passes, and of drafting."""

from __future__ import annotations

import numpy as np
import pytest

from engine.speculation.draft_cost import DraftCostModel
from engine.speculation.pass_cost import PassCostModel


def curve(tokens: int) -> float:
    return 0.02 + 0.001 * tokens


def test_a_machine_that_is_slower_than_when_it_was_measured() -> None:
    """What is seen is right; what is not must not seem dear, or it would never be tried."""
    model = PassCostModel([(1, curve(1)), (64, curve(64))])
    for _ in range(40):
        for nodes in (4, 12):
            model.observe(4, nodes, 3 * curve(nodes))
    estimate = model.seconds(4, 20)
    assert estimate[[0, 8]] == pytest.approx([3 * curve(4), 3 * curve(12)], rel=0.05)
    assert (0.7 * 3 * curve(20)) < estimate[-1] < 1.02 * 3 * curve(20)


@pytest.mark.parametrize("factor", [1.0, 0.3, 0.1])
def test_a_calibration_of_another_speed_is_corrected(factor: float) -> None:
    model = PassCostModel([(1, curve(1)), (64, curve(64))])
    for _ in range(40):
        for nodes in (4, 12):
            model.observe(4, nodes, factor * curve(nodes))
    estimate = model.seconds(4, 20)
    assert len(estimate) == 17
    # Sizes that were not seen follow: the whole machine is so much faster.
    assert estimate == pytest.approx([factor * curve(nodes) for nodes in range(4, 21)], rel=0.05)


def test_what_the_curve_does_not_have_is_learnt_where_it_is_seen() -> None:
    model = PassCostModel([(1, 0.02)])
    for _ in range(60):
        for nodes in (1, 8, 9):
            model.observe(1, nodes, 0.02 if nodes < 9 else 0.03)
    estimate = model.seconds(1, 9)
    assert estimate[8] / estimate[0] == pytest.approx(1.5, rel=0.05)
    assert estimate[7] / estimate[0] == pytest.approx(1.0, rel=0.05)


def test_a_hiccup_moves_estimates_little() -> None:
    model = PassCostModel([(1, curve(1)), (64, curve(64))])
    for _ in range(50):
        model.observe(2, 6, curve(6))
    before = model.seconds(2, 6)
    model.observe(2, 6, 50 * curve(6))
    assert model.seconds(2, 6) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("level", [0.9, 1.0, 1.1])
def test_what_each_sequence_takes_is_added_once_however_many_its_drafts(batch: int, level: float) -> None:
    """Contexts are read once for all of a request's tokens: a batch without drafts tells what they cost."""

    def seconds(nodes: int) -> float:
        return level * curve(nodes) + 0.0007 * batch

    model = PassCostModel([(1, curve(1)), (256, curve(256))])
    for _ in range(12):
        model.observe(batch, batch, seconds(batch))
    doubled = model.seconds(batch, 2 * batch)[-1]
    assert doubled == pytest.approx(seconds(2 * batch), rel=0.08)
    # What is not known yet is the machine's speed; one pass of another size tells.
    for _ in range(4):
        model.observe(batch, 2 * batch, seconds(2 * batch))
    assert model.seconds(batch, 3 * batch)[-1] == pytest.approx(seconds(3 * batch), rel=0.06)


def test_an_engines_first_pass_says_nothing() -> None:
    model = PassCostModel([(1, curve(1)), (64, curve(64))])
    model.observe(4, 8, 30 * curve(8))
    assert model.seconds(4, 12) == pytest.approx([curve(nodes) for nodes in range(4, 13)], rel=0.05)


def test_passes_of_one_kind_do_not_make_others_doubtful() -> None:
    """A thousand alike cannot tell a slow machine from costly sequences; a hiccup must not decide it."""
    model = PassCostModel([(1, curve(1)), (256, curve(256))])
    for _ in range(1000):
        model.observe(8, 8, curve(8))
    model.observe(8, 8, 5 * curve(8))
    assert model.seconds(8, 64)[-1] == pytest.approx(curve(64), rel=0.05)


def test_of_several_calibrations_of_one_size_the_least_counts() -> None:
    assert PassCostModel([(4, 0.4), (4, 0.3), (1, 0.2)]).seconds(1, 4)[-1] == pytest.approx(0.3)


def test_fewer_tokens_take_no_longer_than_more_were_seen_to() -> None:
    """A measurement that something came between does not make all larger passes look slow."""
    model = PassCostModel([(1, 0.02), (2, 0.2), (4, 0.03), (8, 0.04)])
    assert model.seconds(1, 8).tolist()[:4] == pytest.approx([0.02, 0.03, 0.03, 0.03])
    assert model.seconds(1, 8)[-1] == pytest.approx(0.04)


def test_more_tokens_take_no_longer_than_as_many_passes() -> None:
    model = PassCostModel([(1, 0.02), (2, 0.2), (4, 0.3), (8, 0.5)])
    assert model.seconds(1, 8)[[0, 1, 3, 7]].tolist() == pytest.approx([0.02, 0.04, 0.08, 0.16])


def test_the_drafter_is_cheap_until_it_is_known_and_then_what_it_is() -> None:
    model = DraftCostModel()
    assert not model.seconds(4, 8).any()
    for count, seconds in ((0, 0.001), (4, 0.009)):
        for _ in range(20):
            model.observe(4, count, seconds)
    assert model.seconds(4, 6) == pytest.approx([0.001 + 0.002 * count for count in range(7)])
    # Other batches are taken to be alike but for what is idle.
    assert model.seconds(9, 4)[-1] == pytest.approx(0.008)


def after_cold_steps() -> DraftCostModel:
    model = DraftCostModel()
    for seconds in (0.7, 0.4):
        model.observe(1, 1, seconds)
    return model


def test_what_an_engine_begins_with_says_nothing_of_the_drafter() -> None:
    model = after_cold_steps()
    assert not model.seconds(1, 4).any()
    model.observe(1, 1, 0.002)
    assert model.seconds(1, 1)[1] == pytest.approx(0.002)


def test_a_drafter_that_catches_up_says_nothing_of_what_drafts_take() -> None:
    model = after_cold_steps()
    for _ in range(8):
        model.observe(1, 0, 0.001)
        model.observe(1, 1, 0.009)
        model.observe(1, 1, 0.003)
    assert model.seconds(1, 1) == pytest.approx([0.001, 0.003])


@pytest.mark.parametrize("disturbed", [2, 4])
def test_what_disturbed_a_few_drafts_is_forgotten(disturbed: int) -> None:
    model = after_cold_steps()
    for _ in range(disturbed):
        model.observe(1, 1, 0.4)
    for _ in range(16):
        model.observe(1, 1, 0.002)
    assert model.seconds(1, 1)[1] == pytest.approx(0.002)
    for _ in range(2):
        model.observe(1, 1, 0.4)
    assert model.seconds(1, 1)[1] == pytest.approx(0.002)


def test_a_drafter_that_catches_up_is_no_dearer_than_that() -> None:
    """Else what was once measured too high would keep drafts away, and itself from being measured again."""
    model = after_cold_steps()
    for _ in range(4):
        model.observe(1, 1, 0.4)
    model.observe(1, 0, 0.001)
    model.observe(1, 1, 0.004)
    assert model.seconds(1, 1)[1] == pytest.approx(0.004)


def test_what_was_not_seen_for_long_is_not_known() -> None:
    model = after_cold_steps()
    model.observe(1, 4, 0.4)
    for _ in range(600):
        model.observe(1, 0, 0.001)
    assert model.seconds(1, 4) == pytest.approx([0.001] * 5)


def test_more_drafts_never_seem_cheaper() -> None:
    model = after_cold_steps()
    model.observe(1, 2, 0.5)
    model.observe(1, 4, 0.1)
    assert (np.diff(model.seconds(1, 6)) >= 0).all()
