from __future__ import annotations

import pytest

from prefix_index.breaker import CircuitBreaker
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(cooldown_s=1.0, clock=clock)


def test_closed_lets_everybody_through(breaker: CircuitBreaker) -> None:
    assert [breaker.admit() for _ in range(3)] == [True, True, True]
    breaker.succeed()
    assert breaker.closed


def test_a_failure_stops_everybody_until_the_cooldown_is_over(breaker: CircuitBreaker, clock: Clock) -> None:
    assert breaker.admit()
    breaker.fail()
    clock.now_s = 0.9
    assert not breaker.admit()
    assert not breaker.closed
    clock.now_s = 1.0
    assert breaker.admit()


def test_one_at_a_time_probes(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.fail()
    clock.now_s = 1.0
    assert [breaker.admit(), breaker.admit()] == [True, False]
    breaker.fail()
    clock.now_s = 1.9
    assert not breaker.admit()
    clock.now_s = 2.0
    assert breaker.admit()
    breaker.succeed()
    assert [breaker.admit(), breaker.admit()] == [True, True]


def test_a_cancelled_probe_frees_the_place(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.fail()
    clock.now_s = 1.0
    assert breaker.admit()
    breaker.abandon()
    assert breaker.admit()
    assert not breaker.closed
