"""The prefill worker's table of tickets: a pure state machine, which pins nothing and sends nothing.

    OPEN --attach--> ATTACHED(g) --done, abandon--> RELEASED
     |                  |   ^
     | ttl           detach, | attach: g+1
     v               silence v
    EXPIRED <--grace--- DETACHED

`release` and `revoke` end a ticket from every live state as RELEASED. Ended tickets leave the table at once,
so a ticket the table does not know has ended, and its blocks were given back. See docs/handover.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class TicketState(StrEnum):
    """Where a ticket stands. RELEASED and EXPIRED are final."""

    OPEN = "open"
    ATTACHED = "attached"
    DETACHED = "detached"
    RELEASED = "released"
    EXPIRED = "expired"


class EndReason(StrEnum):
    """What ended a ticket."""

    DONE = "done"
    ABANDONED = "abandoned"
    RELEASED = "released"
    REVOKED = "revoked"
    NEVER_FOLLOWED = "never_followed"
    FOLLOWER_LOST = "follower_lost"


class TicketGoneError(Exception):
    """No such ticket here: never issued, or ended."""


@dataclass(frozen=True, slots=True)
class EndedTicket:
    """The end of a ticket: its blocks must be released now. `state` is RELEASED or EXPIRED."""

    ticket_id: str
    state: TicketState
    reason: EndReason


@dataclass(frozen=True, slots=True)
class LostFollower:
    """A follower that fell silent: its stream must be closed. `generation` is the one it held."""

    ticket_id: str
    generation: int


@dataclass(slots=True)
class _Ticket:
    state: TicketState
    deadline: float
    generation: int = 0


class TicketTable:
    """Live tickets of one prefill worker. Not thread-safe: used from the worker's event loop.

    Every ticket has a deadline in every state, so nothing lives for ever while `expire` is called. An
    attach supersedes the follower before it: what that one says afterwards under its old generation has
    no effect.

    Args:
        ttl_s: life of a ticket that nobody has followed yet.
        grace_s: life of a ticket whose follower was lost.
        silence_s: a follower that sends nothing for so long is lost.
        clock: monotonic seconds.
        on_end: called once for each ticket, when its blocks must be released. Called after the table has
            changed; it may call the table.
    """

    def __init__(
        self,
        *,
        ttl_s: float,
        grace_s: float,
        silence_s: float,
        clock: Callable[[], float],
        on_end: Callable[[EndedTicket], None],
    ) -> None:
        if min(ttl_s, grace_s, silence_s) <= 0:
            raise ValueError("ttl_s, grace_s and silence_s must be positive")
        self._ttl_s = ttl_s
        self._grace_s = grace_s
        self._silence_s = silence_s
        self._clock = clock
        self._on_end = on_end
        self._tickets: dict[str, _Ticket] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, ticket_id: str) -> bool:
        return ticket_id in self._tickets

    def state(self, ticket_id: str) -> TicketState | None:
        """State of a live ticket; None for one that is unknown or has ended."""
        ticket = self._tickets.get(ticket_id)
        return ticket.state if ticket else None

    def issue(self, ticket_id: str) -> None:
        """Opens a ticket. Raises ValueError where it is live already."""
        if ticket_id in self._tickets:
            raise ValueError(f"ticket {ticket_id} is live already")
        self._tickets[ticket_id] = _Ticket(TicketState.OPEN, self._clock() + self._ttl_s)

    def attach(self, ticket_id: str) -> int:
        """Gives the lease to a new follower and returns its generation (from 1). Raises TicketGoneError."""
        ticket = self._tickets.get(ticket_id)
        now = self._clock()
        # A follower that is merely overdue may be superseded; a ticket whose time is over may not be revived,
        # whether or not `expire` has come round to it.
        if ticket is None or (ticket.state is not TicketState.ATTACHED and ticket.deadline <= now):
            raise TicketGoneError(f"ticket {ticket_id} is unknown or has ended")
        ticket.generation += 1
        ticket.state = TicketState.ATTACHED
        ticket.deadline = now + self._silence_s
        return ticket.generation

    def heard(self, ticket_id: str, generation: int) -> None:
        """The follower has sent something. No effect under an old generation."""
        ticket = self._held(ticket_id, generation)
        if ticket is not None:
            ticket.deadline = self._clock() + self._silence_s

    def validate(self, ticket_id: str, generation: int) -> bool:
        """Whether every block read under this generation has been pinned until now."""
        return self._held(ticket_id, generation) is not None

    def done(self, ticket_id: str, generation: int) -> bool:
        """The follower has what it needs. False, and no effect, under an old generation."""
        return self._end_held(ticket_id, generation, EndReason.DONE)

    def abandon(self, ticket_id: str, generation: int) -> bool:
        """The follower's request is over. False, and no effect, under an old generation."""
        return self._end_held(ticket_id, generation, EndReason.ABANDONED)

    def detach(self, ticket_id: str, generation: int) -> None:
        """The follower's stream broke: another may attach within the grace time."""
        ticket = self._held(ticket_id, generation)
        if ticket is not None:
            self._detach(ticket)

    def release(self, ticket_id: str) -> bool:
        """The router has no use for the ticket. False where it has ended already."""
        return self._end(ticket_id, TicketState.RELEASED, EndReason.RELEASED)

    def revoke(self, ticket_id: str) -> bool:
        """The worker takes the blocks back, or the prefill failed. False where it has ended already."""
        return self._end(ticket_id, TicketState.RELEASED, EndReason.REVOKED)

    def next_deadline(self) -> float | None:
        """When `expire` has something to do, on the table's clock; None while there is no ticket."""
        return min((ticket.deadline for ticket in self._tickets.values()), default=None)

    def expire(self) -> tuple[LostFollower, ...]:
        """Detaches silent followers and ends tickets whose time is over. Returns the followers detached."""
        now = self._clock()
        due = [(key, ticket) for key, ticket in self._tickets.items() if ticket.deadline <= now]
        lost: list[LostFollower] = []
        for ticket_id, ticket in due:
            if self._tickets.get(ticket_id) is not ticket:
                continue  # Ended by `on_end` of one before it.
            match ticket.state:
                case TicketState.ATTACHED:
                    self._detach(ticket)
                    lost.append(LostFollower(ticket_id, ticket.generation))
                case TicketState.OPEN:
                    self._end(ticket_id, TicketState.EXPIRED, EndReason.NEVER_FOLLOWED)
                case _:
                    self._end(ticket_id, TicketState.EXPIRED, EndReason.FOLLOWER_LOST)
        return tuple(lost)

    def check_invariants(self) -> None:
        """Raises AssertionError naming the ticket in an impossible state."""
        for ticket_id, ticket in self._tickets.items():
            live = ticket.state in (TicketState.OPEN, TicketState.ATTACHED, TicketState.DETACHED)
            assert live, f"ticket {ticket_id} has ended as {ticket.state} and is still in the table"
            assert (ticket.state is TicketState.OPEN) == (ticket.generation == 0), (
                f"ticket {ticket_id} is {ticket.state} in generation {ticket.generation}"
            )

    def _held(self, ticket_id: str, generation: int) -> _Ticket | None:
        ticket = self._tickets.get(ticket_id)
        if ticket is None or ticket.state is not TicketState.ATTACHED or ticket.generation != generation:
            return None
        return ticket

    def _detach(self, ticket: _Ticket) -> None:
        ticket.state = TicketState.DETACHED
        ticket.deadline = self._clock() + self._grace_s

    def _end_held(self, ticket_id: str, generation: int, reason: EndReason) -> bool:
        if self._held(ticket_id, generation) is None:
            return False
        return self._end(ticket_id, TicketState.RELEASED, reason)

    def _end(self, ticket_id: str, state: TicketState, reason: EndReason) -> bool:
        if self._tickets.pop(ticket_id, None) is None:
            return False
        self._on_end(EndedTicket(ticket_id, state, reason))
        return True
