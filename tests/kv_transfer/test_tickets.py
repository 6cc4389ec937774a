from __future__ import annotations

import pytest

from kv_transfer.tickets import (
    EndedTicket,
    EndReason,
    LostFollower,
    TicketGoneError,
    TicketState,
    TicketTable,
)
from tests.support.clock import Clock

TTL_S, GRACE_S, SILENCE_S = 10.0, 5.0, 3.0


class Worker:
    """A table with a clock to turn and a list of what it reported."""

    def __init__(self) -> None:
        self.clock = Clock(100.0)
        self.ended: list[EndedTicket] = []
        self.table = TicketTable(
            ttl_s=TTL_S, grace_s=GRACE_S, silence_s=SILENCE_S, clock=self.clock, on_end=self.ended.append
        )

    def after(self, seconds: float) -> tuple[LostFollower, ...]:
        self.clock.now_s += seconds
        return self.table.expire()


@pytest.fixture
def worker() -> Worker:
    worker = Worker()
    worker.table.issue("t")
    return worker


def ended(reason: EndReason) -> list[EndedTicket]:
    expired = reason in (EndReason.NEVER_FOLLOWED, EndReason.FOLLOWER_LOST)
    return [EndedTicket("t", TicketState.EXPIRED if expired else TicketState.RELEASED, reason)]


def test_the_usual_way(worker: Worker) -> None:
    table = worker.table
    assert table.state("t") is TicketState.OPEN
    generation = table.attach("t")
    assert table.state("t") is TicketState.ATTACHED
    assert table.validate("t", generation)
    assert table.done("t", generation)
    assert worker.ended == ended(EndReason.DONE)
    assert "t" not in table
    assert len(table) == 0


def test_an_open_ticket_expires_at_its_time_to_live(worker: Worker) -> None:
    assert worker.table.next_deadline() == 100.0 + TTL_S
    worker.after(TTL_S - 0.001)
    assert worker.ended == []
    worker.after(0.001)
    assert worker.ended == ended(EndReason.NEVER_FOLLOWED)
    assert worker.table.next_deadline() is None


def test_a_ticket_past_its_time_cannot_be_attached_even_before_the_sweep(worker: Worker) -> None:
    worker.clock.now_s += TTL_S
    with pytest.raises(TicketGoneError, match="t is unknown or has ended"):
        worker.table.attach("t")
    worker.table.expire()
    assert worker.ended == ended(EndReason.NEVER_FOLLOWED)


def test_another_follower_takes_over_within_the_grace(worker: Worker) -> None:
    table = worker.table
    first = table.attach("t")
    table.detach("t", first)
    assert table.state("t") is TicketState.DETACHED
    assert not table.validate("t", first)
    worker.after(GRACE_S - 0.001)
    second = table.attach("t")
    assert second == first + 1
    assert not table.validate("t", first)
    assert table.validate("t", second)


def test_a_detached_ticket_expires_after_the_grace(worker: Worker) -> None:
    worker.table.detach("t", worker.table.attach("t"))
    worker.after(GRACE_S)
    assert worker.ended == ended(EndReason.FOLLOWER_LOST)


def test_a_newer_follower_supersedes_the_older(worker: Worker) -> None:
    table = worker.table
    first = table.attach("t")
    second = table.attach("t")
    assert not table.validate("t", first)
    assert not table.done("t", first)
    assert not table.abandon("t", first)
    table.detach("t", first)
    table.heard("t", first)
    assert table.state("t") is TicketState.ATTACHED
    assert table.validate("t", second)
    assert worker.ended == []


def test_a_silent_follower_is_detached_and_the_ticket_expires_later(worker: Worker) -> None:
    table = worker.table
    generation = table.attach("t")
    assert worker.after(SILENCE_S - 0.001) == ()
    table.heard("t", generation)
    assert worker.after(SILENCE_S - 0.001) == ()
    assert worker.after(0.001) == (LostFollower("t", generation),)
    assert table.state("t") is TicketState.DETACHED
    # It wakes up: what it has read may not be used.
    table.heard("t", generation)
    assert not table.validate("t", generation)
    assert worker.after(GRACE_S) == ()
    assert worker.ended == ended(EndReason.FOLLOWER_LOST)


@pytest.mark.parametrize("state", [TicketState.OPEN, TicketState.ATTACHED, TicketState.DETACHED])
@pytest.mark.parametrize("reason", [EndReason.RELEASED, EndReason.REVOKED])
def test_release_and_revoke_end_every_state_once(
    worker: Worker, state: TicketState, reason: EndReason
) -> None:
    table = worker.table
    if state is not TicketState.OPEN:
        generation = table.attach("t")
        if state is TicketState.DETACHED:
            table.detach("t", generation)
    end = table.release if reason is EndReason.RELEASED else table.revoke
    assert table.state("t") is state
    assert end("t")
    assert not end("t")
    assert worker.ended == ended(reason)


def test_abandon_ends_the_ticket(worker: Worker) -> None:
    assert worker.table.abandon("t", worker.table.attach("t"))
    assert worker.ended == ended(EndReason.ABANDONED)


def test_unknown_tickets(worker: Worker) -> None:
    table = worker.table
    with pytest.raises(TicketGoneError):
        table.attach("x")
    assert not table.validate("x", 1)
    assert not table.done("x", 1)
    assert not table.release("x")
    assert table.state("x") is None
    table.detach("x", 1)
    table.heard("x", 1)
    with pytest.raises(ValueError, match="live already"):
        table.issue("t")
    assert worker.ended == []


def test_the_callback_may_use_the_table() -> None:
    clock = Clock(100.0)
    ended: list[str] = []

    def on_end(end: EndedTicket) -> None:
        ended.append(end.ticket_id)
        assert end.ticket_id not in table
        table.release("b" if end.ticket_id == "a" else "a")

    table = TicketTable(ttl_s=1, grace_s=1, silence_s=1, clock=clock, on_end=on_end)
    table.issue("a")
    table.issue("b")
    clock.now_s += 1
    table.expire()
    assert sorted(ended) == ["a", "b"]


@pytest.mark.parametrize("wrong", [{"ttl_s": 0.0}, {"grace_s": -1.0}, {"silence_s": 0.0}])
def test_times_must_be_positive(wrong: dict[str, float]) -> None:
    times = {"ttl_s": 1.0, "grace_s": 1.0, "silence_s": 1.0, **wrong}
    with pytest.raises(ValueError, match="positive"):
        TicketTable(**times, clock=Clock(100.0), on_end=lambda _: None)
