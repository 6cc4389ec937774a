from __future__ import annotations

import pytest

from kvrelay import DeadlineExceededError, InvalidRequestError, UnavailableError
from kvrelay._endpoints import Attempts, Endpoints, checked_endpoints
from tests.support.clock import Clock

AWAY = UnavailableError("away")


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def endpoints(clock: Clock) -> Endpoints:
    return Endpoints(("a:1", "b:1", "c:1"), clock)


@pytest.mark.parametrize("wrong", ["", "localhost", "http://localhost:8000", [], ["a:1", ""]])
def test_endpoints_are_host_and_port(wrong: str | list[str]) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        checked_endpoints(wrong)


def test_one_or_several() -> None:
    assert checked_endpoints("a:1") == ("a:1",)
    assert checked_endpoints(["a:1", "[::1]:2"]) == ("a:1", "[::1]:2")


def test_requests_take_turns(endpoints: Endpoints) -> None:
    orders = [endpoints.order() for _ in range(6)]
    assert [order[0] for order in orders[:3]] == [order[0] for order in orders[3:]]
    assert {order[0] for order in orders} == {0, 1, 2}
    assert all(sorted(order) == [0, 1, 2] for order in orders)


def test_a_failed_endpoint_is_tried_last_for_a_while(endpoints: Endpoints, clock: Clock) -> None:
    endpoints.failed(1)
    assert all(endpoints.order()[-1] == 1 for _ in range(6))
    clock.now_s += 60.0
    assert {endpoints.order()[0] for _ in range(3)} == {0, 1, 2}
    endpoints.failed(1)
    endpoints.answered(1)
    assert {endpoints.order()[0] for _ in range(3)} == {0, 1, 2}


def test_all_endpoints_without_a_pause_then_growing_pauses(endpoints: Endpoints, clock: Clock) -> None:
    attempts = Attempts(endpoints, retries=8, timeout_s=None, clock=clock)
    tried, pauses = [attempts.endpoint], []
    for _ in range(8):
        pauses.append(attempts.failed(AWAY))
        tried.append(attempts.endpoint)
    assert sorted(tried[:3]) == [0, 1, 2]
    assert tried[3:6] == tried[:3]
    assert [pause == 0.0 for pause in pauses] == [True, True, False, True, True, False, True, True]
    assert 0.025 <= pauses[2] <= 0.05 <= pauses[5] <= 0.1
    with pytest.raises(UnavailableError, match="away"):
        attempts.failed(AWAY)


def test_each_endpoint_is_tried_even_without_retries(endpoints: Endpoints) -> None:
    attempts = Attempts(endpoints, retries=0, timeout_s=None)
    assert [attempts.failed(AWAY), attempts.failed(AWAY)] == [0.0, 0.0]
    with pytest.raises(UnavailableError):
        attempts.failed(AWAY)


def test_pauses_are_bounded(clock: Clock) -> None:
    attempts = Attempts(Endpoints(("a:1",), clock), retries=1000, timeout_s=None, clock=clock)
    assert max(attempts.failed(AWAY) for _ in range(1000)) <= 1.0


def test_only_unavailability_is_tried_again(endpoints: Endpoints) -> None:
    with pytest.raises(InvalidRequestError):
        Attempts(endpoints, retries=5, timeout_s=None).failed(InvalidRequestError("no"))


def test_the_deadline_counts_for_all_attempts_together(clock: Clock) -> None:
    attempts = Attempts(Endpoints(("a:1",), clock), retries=1000, timeout_s=10.0, clock=clock)
    assert attempts.remaining_s == 10.0
    clock.now_s += 4.0
    attempts.failed(AWAY)
    assert attempts.remaining_s == 6.0
    clock.now_s += 60.0
    assert attempts.remaining_s == 0.0
    with pytest.raises(DeadlineExceededError, match="away"):
        attempts.failed(AWAY)
