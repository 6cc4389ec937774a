from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.attempts import AttemptFence, StaleAttemptError
from tests.support.clock import Clock


def test_lower_attempts_are_refused_by_name() -> None:
    fence = AttemptFence(memory_s=60, capacity=8, clock=Clock())
    fence.admit("r", 1)
    fence.admit("r", 3)
    fence.admit("r", 3)
    with pytest.raises(StaleAttemptError, match="request r: attempt 2 comes after attempt 3"):
        fence.admit("r", 2)
    fence.admit("other", 1)
    fence.admit("r", 4)


def test_a_refused_attempt_leaves_no_trace() -> None:
    clock = Clock()
    fence = AttemptFence(memory_s=10, capacity=8, clock=clock)
    fence.admit("r", 5)
    clock.now_s = 9
    with pytest.raises(StaleAttemptError):
        fence.admit("r", 4)
    clock.now_s = 10
    fence.admit("r", 4)


def test_memory_ends_after_its_time() -> None:
    clock = Clock()
    fence = AttemptFence(memory_s=10, capacity=8, clock=clock)
    fence.admit("r", 5)
    clock.now_s = 9.9
    fence.admit("r", 5)
    clock.now_s = 19.8
    with pytest.raises(StaleAttemptError):
        fence.admit("r", 1)
    clock.now_s = 20
    fence.admit("r", 1)
    assert len(fence) == 1


def test_memory_is_bounded_and_forgets_the_oldest() -> None:
    fence = AttemptFence(memory_s=60, capacity=2, clock=Clock())
    fence.admit("a", 2)
    fence.admit("b", 2)
    fence.admit("a", 3)
    fence.admit("c", 2)
    assert len(fence) == 2
    fence.admit("b", 1)
    with pytest.raises(StaleAttemptError):
        fence.admit("c", 1)


@pytest.mark.parametrize(("memory_s", "capacity"), [(0.0, 1), (1.0, 0)])
def test_bounds_must_be_positive(memory_s: float, capacity: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        AttemptFence(memory_s=memory_s, capacity=capacity, clock=Clock())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)), max_size=40))
def test_what_is_admitted_never_falls(dispatches: list[tuple[str, int]]) -> None:
    fence = AttemptFence(memory_s=60, capacity=3, clock=Clock())
    highest: dict[str, int] = {}
    for request, attempt in dispatches:
        if attempt < highest.get(request, 0):
            with pytest.raises(StaleAttemptError):
                fence.admit(request, attempt)
        else:
            fence.admit(request, attempt)
            highest[request] = attempt
