from __future__ import annotations

import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.step_cost import FIRST_TOKENS, SHUNNED_FOR, STALE_AFTER, StepCost

DECODE_S, TOKEN_S = 0.020, 0.001


def machine(decodes: int, prompt_tokens: int) -> float:
    """A machine that gets slower by a fixed time for each prompt token."""
    return DECODE_S + 0.0005 * decodes + TOKEN_S * prompt_tokens


def learnt(decodes: int, slowdown: float, steps: int = 60) -> StepCost:
    """What is known after steps of so many decodes, each with the prompt tokens that were allowed."""
    cost = StepCost()
    for _ in range(steps):
        tokens = cost.prompt_tokens_beside(decodes, slowdown)
        cost.observe(decodes, tokens, machine(decodes, tokens))
    return cost


@pytest.mark.parametrize("decodes", [1, 4, 16, 100])
@pytest.mark.parametrize("slowdown", [1.2, 1.5, 2.0])
def test_steps_come_close_to_the_bound_and_keep_it(decodes: int, slowdown: float) -> None:
    cost = learnt(decodes, slowdown)
    cost.observe(decodes, 0, machine(decodes, 0))
    tokens = cost.prompt_tokens_beside(decodes, slowdown)
    share = machine(decodes, tokens) / machine(decodes, 0)
    # The number is kept while it is at most a quarter too small.
    assert 1 + 0.7 * (slowdown - 1) <= share <= 1 + 1.12 * (slowdown - 1)


def test_a_machine_that_is_not_linear_is_followed_too() -> None:
    def bent(tokens: int) -> float:
        return DECODE_S + 0.002 * tokens**0.6

    cost = StepCost()
    for _ in range(100):
        tokens = cost.prompt_tokens_beside(1, 1.5)
        cost.observe(1, tokens, bent(tokens))
    cost.observe(1, 0, bent(0))
    assert 1.3 <= bent(cost.prompt_tokens_beside(1, 1.5)) / bent(0) <= 1.6


def test_one_step_without_prompts_is_asked_for_first_and_again_and_again() -> None:
    cost = StepCost()
    assert cost.prompt_tokens_beside(3, 1.5) == 0
    cost.observe(3, 0, DECODE_S)
    assert cost.prompt_tokens_beside(3, 1.5) == FIRST_TOKENS
    for _ in range(STALE_AFTER):
        assert cost.prompt_tokens_beside(3, 1.5) > 0
        cost.observe(3, 8, machine(3, 8))
    assert cost.prompt_tokens_beside(3, 1.5) == 0
    cost.observe(3, 0, DECODE_S)
    assert cost.prompt_tokens_beside(3, 1.5) > 0


def test_one_hiccup_moves_no_estimate_far() -> None:
    cost = learnt(4, 1.5)
    cost.observe(4, 0, machine(4, 0))
    before, tokens = cost.decode_s(4), cost.prompt_tokens_beside(4, 1.5)
    assert before is not None
    cost.observe(4, 0, 100.0)
    cost.observe(4, 8, 100.0)
    after = cost.decode_s(4)
    assert after is not None
    assert before <= after <= 1.11 * before
    assert 0.6 * tokens <= cost.prompt_tokens_beside(4, 1.5) <= 1.3 * tokens


def test_the_number_is_kept_while_the_right_one_is_near() -> None:
    cost = StepCost()
    cost.observe(2, 0, 0.1)
    cost.observe(0, 100, 0.1)
    first = cost.prompt_tokens_beside(2, 1.5)
    assert first == 50
    for _ in range(5):
        cost.observe(2, 0, 0.105)
    assert cost.prompt_tokens_beside(2, 1.5) == first
    for _ in range(40):
        cost.observe(2, 0, 0.15)
    assert cost.prompt_tokens_beside(2, 1.5) > first


def test_numbers_of_decodes_never_seen_lie_between_their_neighbours() -> None:
    cost = StepCost()
    assert cost.decode_s(5) is None
    cost.observe(4, 0, 0.04)
    cost.observe(8, 0, 0.06)
    assert cost.decode_s(6) == pytest.approx(0.05)
    assert cost.decode_s(64) == 0.06
    assert cost.decode_s(2) == pytest.approx(0.02)


def test_the_cost_of_a_prompt_token_comes_from_steps_that_have_enough() -> None:
    cost = StepCost()
    cost.observe(0, 3, 0.5)
    assert cost.prefill_s_per_token is None
    cost.observe(0, 200, 0.2)
    assert cost.prefill_s_per_token == pytest.approx(0.001)


def test_clocks_that_stand_still_say_nothing() -> None:
    cost = StepCost()
    cost.observe(1, 0, 0.0)
    cost.observe(0, 64, -1.0)
    assert (cost.decode_s(1), cost.prefill_s_per_token) == (None, None)


# The least of numbers, by which a quotient is infinite.
@example([(0, 16, sys.float_info.min)], 1, 26.0)
@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 600), st.floats(0, 1e6, allow_nan=False)), max_size=60
    ),
    st.integers(1, 1024),
    st.floats(1.0, 100.0),
)
def test_whatever_was_measured_the_answer_is_a_number_of_tokens(
    steps: list[tuple[int, int, float]], decodes: int, slowdown: float
) -> None:
    cost = StepCost()
    for step in steps:
        cost.observe(*step)
    assert cost.prompt_tokens_beside(decodes, slowdown) >= 0
    cost.observe(decodes, 0, 0.01)
    assert cost.prompt_tokens_beside(decodes, slowdown) >= 1


def test_a_number_that_was_too_large_is_shunned_for_a_while() -> None:
    def tiles(tokens: int) -> float:
        return 0.010 + 0.012 * -(-(4 + tokens) // 16)

    cost, asked = StepCost(), []
    for _ in range(2 * SHUNNED_FOR):
        tokens = cost.prompt_tokens_beside(4, 1.4)
        asked.append(tokens)
        cost.observe(4, tokens, tiles(tokens))
    # Twelve are for nothing, thirteen take half as long again as none.
    too_large = sum(1 for tokens in asked if tokens > 12)
    assert 0 < too_large <= 0.01 * len(asked)
    assert sum(asked) >= 0.6 * 12 * len(asked)


def test_a_slow_first_step_of_a_size_is_no_verdict() -> None:
    cost = StepCost()
    cost.observe(4, 0, DECODE_S)
    seen: set[int] = set()
    for _ in range(400):
        tokens = cost.prompt_tokens_beside(4, 1.35)
        if not tokens:
            cost.observe(4, 0, DECODE_S)
            continue
        # One that is new takes half as long again.
        seconds = (DECODE_S + 0.0002 * tokens) * (1.0 if tokens in seen else 1.5)
        seen.add(tokens)
        cost.observe(4, tokens, seconds)
    assert 24 <= cost.prompt_tokens_beside(4, 1.35) <= 44
