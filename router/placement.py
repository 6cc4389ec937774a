"""Finds the workers for one attempt: hash the context, ask the index, let the policy choose, book."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from prefix_index.index import IndexMatch
from router.index_gate import IndexGate
from router.policies.base import NoWorkerError, RoutingPolicy, RoutingRequest, WorkerView
from router.worker_link import WorkerLink
from router.worker_table import WorkerTable

# Longest nap while no worker can be had; a change of the table ends it early, seconds.
_NAP_S = 0.1


@dataclass(frozen=True, slots=True)
class Target:
    """Where one attempt goes.

    Attributes:
        decode: the decode worker.
        prefill: the prefill worker; None where the decode worker prefills.
        reason: the policy's own words.
        matched_tokens: leading tokens of the context that the prefilling worker is believed to hold.
        choosing_s: seconds that hashing, lookup and choice took, waits left out.
    """

    decode: WorkerLink
    prefill: WorkerLink | None
    reason: str
    matched_tokens: int
    choosing_s: float


class Booking:
    """Load noted at the chosen workers until their reports show it."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._links: list[WorkerLink] = []

    def add(self, gate: IndexGate, link: WorkerLink, prefill_tokens: int) -> None:
        """Notes load at one worker."""
        gone = link.book(self._request_id, prefill_tokens)
        self._links.append(link)
        gate.book(link.worker_id, self._request_id, prefill_tokens, gone)

    def clear(self) -> None:
        """The load is over, or prefill is done and the rest is in the reports. Again: nothing happens."""
        for link in self._links:
            link.unbook(self._request_id)
        self._links.clear()


class Placer:
    """Places requests with a policy.

    Args:
        table: the workers.
        gate: the prefix index.
        policy: chooses.
    """

    def __init__(self, table: WorkerTable, gate: IndexGate, policy: RoutingPolicy) -> None:
        self._table = table
        self._gate = gate
        self._policy = policy

    async def place(
        self,
        request_id: str,
        context: Sequence[int],
        cache_salt: str,
        *,
        fixed_decode: str | None,
        ticket_holder: WorkerLink | None,
        wait_s: float,
    ) -> Target:
        """Finds workers, waiting up to `wait_s` where a role is missing.

        Args:
            request_id: breaks ties.
            context: prompt and resumed tokens.
            cache_salt: the tenant's salt.
            fixed_decode: the decode worker to keep, if it lives.
            ticket_holder: the prefill worker whose ticket is given on; only a decode worker is chosen then.
            wait_s: seconds.

        Raises:
            NoWorkerError: a role is still missing after `wait_s`.
        """
        clock = time.monotonic
        hasher = self._table.hasher
        began = clock()
        names = hasher.chain(context, cache_salt)
        tie_break = int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "little")
        request = RoutingRequest(len(context), hasher.block_size, fixed_decode, tie_break)
        give_up_at = began + wait_s
        choosing_s = clock() - began
        while True:
            began = clock()
            if hasher is not self._table.hasher:
                # Workers of another model revision took over while this request waited.
                hasher = self._table.hasher
                names = hasher.chain(context, cache_salt)
            match = await self._gate.match(names)
            try:
                choice = self._choose(request, match, ticket_holder)
            except NoWorkerError:
                left_s = give_up_at - clock()
                if left_s <= 0:
                    raise
                await self._table.wait_change(min(_NAP_S, left_s))
                continue
            asked = (choice.decode, *((choice.prefill,) if choice.prefill and not ticket_holder else ()))
            cooling_s = max(link.cooling_s for link in asked)
            if not cooling_s:
                return replace(choice, choosing_s=choosing_s + clock() - began)
            # All workers of the role failed a moment ago: choose again when the first of them may be asked.
            await self._table.wait_change(min(_NAP_S, cooling_s))

    def book(self, request_id: str, target: Target, context_tokens: int, *, prefills: bool) -> Booking:
        """Notes the load of an attempt; `prefills` is false where it takes an older attempt's ticket."""
        booking = Booking(request_id)
        left = max(1, context_tokens - target.matched_tokens) if prefills else 0
        if target.prefill is not None and prefills:
            booking.add(self._gate, target.prefill, left)
        booking.add(self._gate, target.decode, left if target.prefill is None else 0)
        return booking

    def _choose(
        self, request: RoutingRequest, match: IndexMatch | None, ticket_holder: WorkerLink | None
    ) -> Target:
        links = {
            link.worker_id: link
            for link in (*self._candidates(decode=False), *self._candidates(decode=True))
            if ticket_holder is None or link.can_decode
        }
        if ticket_holder is not None:
            links[ticket_holder.worker_id] = ticket_holder
        views: list[WorkerView] = [link.view(match) for link in links.values()]
        leading = {} if match is None else match.leading_blocks
        matches = {worker_id: blocks * request.block_size for worker_id, blocks in leading.items()}
        placement = self._policy.choose(request, views, matches)
        decode = links[placement.decode]
        if ticket_holder is not None:
            reason = f"re-attached to the ticket of {ticket_holder.worker_id}"
            return Target(decode, ticket_holder, reason, matches.get(ticket_holder.worker_id, 0), 0.0)
        prefill = None if placement.prefill is None else links[placement.prefill]
        matched = min(matches.get((prefill or decode).worker_id, 0), request.num_tokens)
        return Target(decode, prefill, placement.reason, matched, 0.0)

    def _candidates(self, *, decode: bool) -> list[WorkerLink]:
        """Live workers of a role; those that failed a moment ago only where there are no others."""
        live = [link for link in self._table.links if link.can_decode == decode and link.available]
        return [link for link in live if not link.cooling_s] or live
