from __future__ import annotations

from cluster.backoff import Backoff
from tests.support.clock import Clock


def test_the_first_failure_is_answered_at_once_and_delays_double_to_their_bound() -> None:
    backoff = Backoff(first_s=1.0, longest_s=5.0, calm_s=60.0, clock=Clock())
    assert [backoff.failed() for _ in range(6)] == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff.failures == 6


def test_a_calm_time_is_a_new_start() -> None:
    clock = Clock()
    backoff = Backoff(calm_s=60.0, clock=clock)
    for _ in range(3):
        backoff.failed()
    clock.now_s = 61.0
    assert backoff.failed() == 0.0
    clock.now_s = 62.0
    assert backoff.failed() > 0.0


def test_any_number_of_failures_has_a_delay() -> None:
    backoff = Backoff(longest_s=30.0, clock=Clock())
    assert [backoff.failed() for _ in range(2000)][-1] == 30.0
