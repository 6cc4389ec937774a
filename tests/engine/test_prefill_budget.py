"""Prompt tokens beside decodes, as the scheduler plans them."""

from __future__ import annotations

import pytest

from engine.prefill_budget import PrefillBudget
from engine.sequence import Sequence
from engine.step_cost import STALE_AFTER, StepCost
from tests.engine.scheduler_bench import Bench

DECODE_S, TOKEN_S = 0.02, 0.001


def measured(bench: Bench) -> None:
    """A decode takes 20 ms, each prompt token beside it 1 ms."""
    bench.cost.observe(1, 0, DECODE_S)
    bench.cost.observe(0, 100, 100 * TOKEN_S)


def running(bench: Bench, now_s: float = 1.0) -> Sequence:
    """A sequence that has decoded once, alone, at that time."""
    sequence = bench.add(3, submitted_s=now_s)
    bench.step(now_s)
    bench.step(now_s)
    return sequence


def test_prompts_beside_a_running_decode_are_bounded_and_all_others_are_not() -> None:
    bench = Bench(num_blocks=100, slowdown=1.5)
    measured(bench)
    first = running(bench)
    bench.add(35, submitted_s=2.0)
    assert bench.planned(3.0) == [(0, 1), (1, 10)]
    assert bench.planned(3.0) == [(0, 1), (1, 10)]
    bench.end(first)
    assert bench.planned(3.0) == [(1, 15)]


def test_without_a_bound_nothing_is_held_back() -> None:
    bench = Bench(num_blocks=100, slowdown=0.0)
    measured(bench)
    running(bench)
    bench.add(35, submitted_s=2.0)
    assert bench.planned(3.0) == [(0, 1), (1, 35)]


def test_the_budget_is_of_all_prompts_together() -> None:
    bench = Bench(num_blocks=100, slowdown=1.5)
    measured(bench)
    running(bench)
    bench.add(6, submitted_s=2.0)
    bench.add(30, submitted_s=2.0)
    bench.add(30, submitted_s=2.0)
    assert bench.planned(3.0) == [(0, 1), (1, 6), (2, 4)]


def test_a_burst_that_came_with_the_decode_runs_on_up_to_its_bound() -> None:
    bench = Bench(num_blocks=100, slowdown=1.5, chunk=6)
    measured(bench)
    bench.add(3, submitted_s=1.0)
    bench.add(30, submitted_s=1.0)
    assert bench.planned(1.0) == [(0, 3), (1, 6)]
    # Ten tokens are borne as a burst; from then on it is a prompt as any other: ten in each step.
    assert bench.planned(2.0) == [(0, 1), (1, 6)]
    assert bench.planned(3.0) == [(0, 1), (1, 4)]
    bench.cost.observe(1, 0, DECODE_S)
    assert bench.planned(4.0) == [(0, 1), (1, 6)]


def test_what_is_not_known_costs_one_step_at_most() -> None:
    bench = Bench(num_blocks=100, slowdown=1.5)
    running(bench)
    bench.add(60, submitted_s=2.0)
    assert bench.planned(3.0) == [(0, 1)]
    # Nobody measured it: a token runs all the same, in every other step.
    assert bench.planned(3.0) == [(0, 1), (1, 1)]
    assert bench.planned(3.0) == [(0, 1)]
    assert bench.planned(3.0) == [(0, 1), (1, 1)]


@pytest.mark.parametrize("slowdown", [1.0, 1.001])
def test_prompts_come_through_however_tight_the_bound_is(slowdown: float) -> None:
    bench = Bench(num_blocks=100, slowdown=slowdown)
    measured(bench)
    running(bench)
    late = bench.add(2 * STALE_AFTER, submitted_s=2.0)
    steps = 0
    while not late.context_done:
        for _, count in bench.planned(3.0)[1:]:
            bench.cost.observe(1, count, 10.0)
        steps += 1
        assert steps < 5 * STALE_AFTER


@pytest.mark.parametrize("slowdown", [-1.0, 0.5, 0.999, 1001.0, float("inf"), float("nan")])
def test_a_bound_that_is_none_is_refused(slowdown: float) -> None:
    with pytest.raises(ValueError, match=r"max_decode_slowdown must be 0 \(no bound\) or from 1 to 1000"):
        PrefillBudget(StepCost(), slowdown, 0)
