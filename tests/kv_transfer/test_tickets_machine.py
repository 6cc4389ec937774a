"""State machine: whatever comes in whatever order, blocks are released once and nothing lives for ever."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kv_transfer.tickets import EndedTicket, TicketGoneError, TicketState, TicketTable

TTL_S, GRACE_S, SILENCE_S = 10.0, 5.0, 3.0
TICKETS = st.sampled_from(["a", "b", "c"])
# Small, so that current, superseded and future generations all come up.
GENERATIONS = st.integers(0, 4)


@dataclass
class Life:
    """What the model knows of one issued ticket."""

    born: float
    releases: int = 0
    holder: int | None = None
    attaches: int = 0
    heard: float = 0.0
    left: float = 0.0

    def over(self, now: float) -> bool:
        """Whether its time was over, as a ticket that nobody follows."""
        return now >= (self.left + GRACE_S if self.attaches else self.born + TTL_S)


@dataclass
class World:
    now: float = 0.0
    current: dict[str, Life] = field(default_factory=dict)
    past: list[Life] = field(default_factory=list)


class Tickets(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.table = TicketTable(
            ttl_s=TTL_S,
            grace_s=GRACE_S,
            silence_s=SILENCE_S,
            clock=lambda: self.world.now,
            on_end=self.on_end,
        )

    def on_end(self, end: EndedTicket) -> None:
        life = self.world.current.pop(end.ticket_id)
        life.releases += 1
        assert end.state in (TicketState.RELEASED, TicketState.EXPIRED)
        if end.state is TicketState.EXPIRED:
            assert life.holder is None, "blocks were taken from under a follower"
            assert life.over(self.world.now), "expired before its time"
        life.holder = None
        self.world.past.append(life)

    @rule(ticket=TICKETS)
    def issue(self, ticket: str) -> None:
        if ticket not in self.world.current:
            self.table.issue(ticket)
            self.world.current[ticket] = Life(self.world.now)

    @rule(ticket=TICKETS)
    def attach(self, ticket: str) -> None:
        life = self.world.current.get(ticket)
        try:
            generation = self.table.attach(ticket)
        except TicketGoneError:
            assert life is None or (life.holder is None and life.over(self.world.now))
            return
        assert life is not None
        assert life.holder is not None or not life.over(self.world.now)
        life.attaches += 1
        assert generation == life.attaches
        life.holder = generation
        life.heard = self.world.now

    @rule(ticket=TICKETS, generation=GENERATIONS)
    def heard(self, ticket: str, generation: int) -> None:
        self.table.heard(ticket, generation)
        life = self.world.current.get(ticket)
        if life is not None and life.holder == generation:
            life.heard = self.world.now

    @rule(ticket=TICKETS, generation=GENERATIONS)
    def validate(self, ticket: str, generation: int) -> None:
        life = self.world.current.get(ticket)
        holds = life is not None and life.holder is not None and life.holder == generation
        assert self.table.validate(ticket, generation) == holds

    @rule(ticket=TICKETS, generation=GENERATIONS, finish=st.booleans())
    def done_or_abandon(self, ticket: str, generation: int, finish: bool) -> None:
        life = self.world.current.get(ticket)
        holds = life is not None and life.holder is not None and life.holder == generation
        end = self.table.done if finish else self.table.abandon
        assert end(ticket, generation) == holds
        assert (ticket in self.world.current) == (life is not None and not holds)

    @rule(ticket=TICKETS, generation=GENERATIONS)
    def detach(self, ticket: str, generation: int) -> None:
        self.table.detach(ticket, generation)
        life = self.world.current.get(ticket)
        if life is not None and life.holder == generation:
            life.holder = None
            life.left = self.world.now

    @rule(ticket=TICKETS, taken=st.booleans())
    def release_or_revoke(self, ticket: str, taken: bool) -> None:
        known = ticket in self.world.current
        assert (self.table.revoke if taken else self.table.release)(ticket) == known
        assert ticket not in self.world.current

    @rule(seconds=st.floats(0, 12))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def sweep(self) -> None:
        held = {ticket: life for ticket, life in self.world.current.items() if life.holder is not None}
        lost = self.table.expire()
        silent = {
            (ticket, life.holder) for ticket, life in held.items() if self.world.now >= life.heard + SILENCE_S
        }
        assert {(follower.ticket_id, follower.generation) for follower in lost} == silent
        for ticket, _ in silent:
            self.world.current[ticket].holder = None
            self.world.current[ticket].left = self.world.now
        deadline = self.table.next_deadline()
        assert deadline is None or deadline > self.world.now

    @rule()
    def nothing_lives_for_ever(self) -> None:
        for _ in range(2):
            self.world.now += max(TTL_S, GRACE_S, SILENCE_S) + 1
            self.sweep()
        assert not self.world.current
        assert len(self.table) == 0
        assert self.table.next_deadline() is None

    @invariant()
    def released_exactly_once(self) -> None:
        self.table.check_invariants()
        assert all(life.releases == 1 for life in self.world.past)
        assert all(life.releases == 0 for life in self.world.current.values())
        assert len(self.table) == len(self.world.current)

    @invariant()
    def states_are_those_of_the_model(self) -> None:
        for ticket, life in self.world.current.items():
            state = self.table.state(ticket)
            if life.holder is not None:
                assert state is TicketState.ATTACHED
            else:
                assert state is (TicketState.DETACHED if life.attaches else TicketState.OPEN)

    def teardown(self) -> None:
        self.nothing_lives_for_ever()
        assert all(life.releases == 1 for life in self.world.past)


TestTickets = Tickets.TestCase
TestTickets.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
