"""Which tokens of which sequences run in the next step.

Running decodes go first, then contexts, running and waiting ones alike, strictly by rank: lower priority
value first, equals in order of arrival. How many tokens of contexts run beside decodes the prefill budget
says. Drafts have what is left, and half of the tokens that decodes leave in any case: guesses keep no context
waiting, nor contexts all guesses. When blocks run out the running sequence that ranks last is preempted: its
blocks are freed, its tokens kept, its KV swapped to host memory where that is cheaper than computing it
again. A context that finds no room takes it from running sequences of a higher priority value, if that is
enough. Priority is strict: under steady load of better ones a sequence may wait for ever. Among equals
nothing does, because

- a sequence is admitted only when its whole context fits, so a prefill never needs another block;
- only decodes grow; one that cannot preempts whoever ranks last, at worst itself, so the first goes on;
- held prefills and reservations are never preempted, but they need nothing either: the queue waits until
  they are let go;
- a reservation that finds no room has its place by rank too: it leaves the head of the queue its room
  where that comes first, and nobody who comes after it is admitted before it;
- no sequence can outgrow the pool: the engine limits lengths to what the pool holds;
- swapped sequences hold no block of the pool: they wait as any other.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from itertools import takewhile

from engine.kv.block_manager import BlockManager
from engine.kv.block_pool import require
from engine.kv.swap import SwapSpace
from engine.prefill_budget import PrefillBudget
from engine.schedule import Schedule
from engine.sequence import Sequence, SequenceStatus


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank


class Scheduler:
    """Queues and the policy over them.

    Args:
        blocks: gives and takes the sequences' blocks.
        budget: bounds the prompt tokens beside decodes.
        swap: where preempted sequences' KV goes, as far as it fits.
        max_batched_tokens: token budget of a step.
        max_running: most sequences in a step, and most admitted from the queue at a time. Adopted
            sequences may exceed it, for their blocks are held already; they take turns by rank.
        prefill_chunk: most tokens of one prefill in a step.
        wanted_drafts: says how many drafts each decode is to have, empty for none at all; None where none
            speculates.
        complete: told of a sequence before its blocks are kept elsewhere: what is missing in them is written
            now. None where nothing ever is.
        reruns_last: whether a context whose first tokens have their KV begins with the last of these, for the
            feature that a drafter reads of it.

    Attributes:
        asking: sequences that a reservation found no room for, by rank.
        waiting: the queue, by rank.
        running: admitted and not ended, by rank.
        recomputes: preemptions after which the context is computed again.
        swaps: preemptions whose KV went to host memory.
    """

    def __init__(
        self,
        blocks: BlockManager,
        budget: PrefillBudget,
        swap: SwapSpace,
        *,
        max_batched_tokens: int,
        max_running: int,
        prefill_chunk: int,
        wanted_drafts: Callable[[list[Sequence]], Iterable[int]] | None = None,
        complete: Callable[[Sequence], None] | None = None,
        reruns_last: bool = False,
    ) -> None:
        for name, value in (
            ("max_batched_tokens", max_batched_tokens),
            ("max_running", max_running),
            ("prefill_chunk", prefill_chunk),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self._blocks = blocks
        self._budget = budget
        self._swap = swap
        self._max_batched_tokens = max_batched_tokens
        self._max_running = max_running
        self._prefill_chunk = prefill_chunk
        self._wanted_drafts = wanted_drafts
        self._complete = complete
        self._reruns_last = reruns_last
        # Tokens of the step under way that contexts leave to drafts.
        self._for_drafts = 0
        self.asking: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.recomputes = 0
        self.swaps = 0

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence into the queue."""
        sequence.status = SequenceStatus.WAITING
        insort(self.waiting, sequence, key=_rank)

    def reserve(self, sequence: Sequence) -> int | None:
        """Allocates for KV that comes from elsewhere; the tokens that need not come, None without room.

        Without room the sequence keeps its place before those that rank after it, until it is tried again
        or removed.
        """
        spare = 0
        sequence.arriving = True
        if self.waiting and self.waiting[0].rank < sequence.rank:
            head = self.waiting[0]
            spare = self._blocks.shortage_of(head, head.tokens_to_hold)
        hits = self._allocate(sequence, spare)
        if hits is None and self._displace_for(sequence, spare, places=0):
            hits = self._allocate(sequence, spare)
        if sequence.status is SequenceStatus.ASKING:
            self.asking.remove(sequence)
        sequence.status = SequenceStatus.RESERVED if hits is not None else SequenceStatus.ASKING
        if hits is None:
            insort(self.asking, sequence, key=_rank)
            return None
        return self._blocks.unread_tokens(sequence)

    def run(self, sequence: Sequence) -> None:
        """Lets a sequence that holds its blocks run."""
        sequence.status = SequenceStatus.RUNNING
        sequence.arriving = False
        insort(self.running, sequence, key=_rank)

    def remove(self, sequence: Sequence, status: SequenceStatus) -> None:
        """Takes a sequence out of the queues; its blocks stay its own, swapped KV is let go."""
        if sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
            if sequence.swapped is not None:
                self._swap.release(sequence.swapped)
                sequence.swapped = None
        elif sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is SequenceStatus.ASKING:
            self.asking.remove(sequence)
        sequence.status = status

    def can_schedule(self) -> bool:
        """Whether `schedule` would run something, or preempt so that it can."""
        return bool(self.running) or (bool(self.waiting) and self._head_fits())

    def schedule(self, now_s: float) -> Schedule:
        """Chooses the next step's tokens, preempting and admitting as needed.

        Args:
            now_s: monotonic time, noted as the admission of sequences that leave the queue first now.
        """
        self._displace_for_head(now_s)
        batch = Schedule()
        self._add_decodes(batch, now_s)
        wanted: list[int] = []
        if self._wanted_drafts is not None and batch.sequences:
            wanted = list(self._wanted_drafts(batch.sequences))
        self._for_drafts = min(sum(wanted), (self._max_batched_tokens - batch.num_tokens) // 2)
        self._add_contexts(batch, now_s)
        if wanted:
            batch.lookahead = self._allot(batch, wanted)
        return batch

    def check_invariants(self) -> None:
        """Raises AssertionError naming the broken invariant."""
        for queue, status in (
            (self.asking, SequenceStatus.ASKING),
            (self.waiting, SequenceStatus.WAITING),
            (self.running, SequenceStatus.RUNNING),
        ):
            order = [sequence.rank for sequence in queue]
            require(order == sorted(set(order)), f"{status.name} is in order of rank, each once")
            require(all(s.status is status for s in queue), f"those in {status.name} have that status")
        require(all(not s.blocks for s in self.waiting), "waiting sequences hold no blocks")
        require(all(s.num_computed == 0 for s in self.waiting), "waiting sequences have nothing computed")
        require(
            all(s.swapped is None for s in (*self.running, *self.asking)),
            "only waiting sequences are swapped",
        )
        self._swap.check_invariants([s.swapped for s in self.waiting if s.swapped is not None])
        for sequence in self.running:
            require(sequence.num_uncomputed >= 1, f"{sequence.request_id} has a token to run")
            if not sequence.context_done or sequence.num_uncomputed > 1:
                require(
                    self._blocks.capacity_of(sequence) >= sequence.num_tokens,
                    f"the whole context of {sequence.request_id} has its blocks",
                )

    def _room(self, batch: Schedule) -> int:
        """Tokens that one more sequence may have in this step."""
        if len(batch.sequences) >= self._max_running:
            return 0
        return self._max_batched_tokens - batch.num_tokens

    def _add_decodes(self, batch: Schedule, now_s: float) -> None:
        running, capacity_of = self.running, self._blocks.capacity_of
        index = 0
        # `running` shrinks from behind while this loop preempts.
        while index < len(running) and self._room(batch):
            sequence = running[index]
            index += 1
            if len(sequence.token_ids) - sequence.num_computed != 1:
                continue
            if sequence.num_computed >= capacity_of(sequence) and not self._grow(sequence):
                index -= 1
                continue
            if sequence.decoding_since_s > now_s:
                sequence.decoding_since_s = now_s
            batch.add(sequence, 1)
        batch.num_decodes = len(batch.sequences)

    def _allot(self, batch: Schedule, wanted: list[int]) -> list[int]:
        """Room for drafts, in what decodes and contexts leave: nobody is preempted for a guess.

        One more block than the drafts' own may be taken, for the token that follows the last of them: where a
        drafter keeps KV in the blocks, that token's is written at once. `counts` reserve it in the budget.
        """
        allotted: list[int] = []
        spare = self._growing()
        decodes = batch.sequences[: batch.num_decodes]
        for index, (sequence, count) in enumerate(zip(decodes, wanted, strict=True)):
            count = min(count, self._max_batched_tokens - batch.num_tokens)
            # The last token of a first context is no decode, and whoever holds draws one token alone.
            if not sequence.context_done:
                count = 0
            if count > 0:
                reach = self._blocks.reach(sequence, sequence.num_tokens + count + 1, spare)
                count = max(0, min(count, reach - sequence.num_tokens - 1))
            allotted.append(count)
            batch.counts[index] += count
            batch.num_tokens += count
        return allotted

    def _add_contexts(self, batch: Schedule, now_s: float) -> None:
        """Chunks of running contexts and of those that wait, by rank, as the budget allows."""
        contexts = [s for s in self.running if s.num_uncomputed > 1]
        if not contexts and not self.waiting:
            return
        oldest_s = min((s.decoding_since_s for s in batch.sequences), default=now_s)
        self._budget.begin(batch.num_decodes, oldest_s)
        for sequence in contexts:
            if not self._admit_before(sequence, batch, now_s) or not self._add_chunk(sequence, batch):
                return
        self._admit_before(None, batch, now_s)

    def _admit_before(self, other: Sequence | None, batch: Schedule, now_s: float) -> bool:
        """Admits who waits and ranks before `other`, or everybody; False where the step has no room left."""
        while self.waiting and (other is None or self.waiting[0].rank < other.rank):
            sequence = self.waiting[0]
            if not self._tokens_for(sequence, sequence.num_tokens, batch):
                return False
            if self._is_full() or not self._admit(sequence, now_s):
                break
            if not self._add_chunk(sequence, batch):
                return False
        return True

    def _tokens_for(self, sequence: Sequence, tokens: int, batch: Schedule) -> int:
        """How many of `tokens` of a context this step has room for."""
        room = max(0, self._room(batch) - self._for_drafts)
        return self._budget.allowed(sequence, min(tokens, self._prefill_chunk, room))

    def _add_chunk(self, sequence: Sequence, batch: Schedule) -> bool:
        count = self._tokens_for(sequence, sequence.num_uncomputed, batch)
        if count:
            self._budget.spend(sequence, count)
            batch.add(sequence, count)
        return count > 0

    def _admit(self, sequence: Sequence, now_s: float) -> bool:
        """Lets the head of the queue run where its blocks can be had."""
        if self._overtakes(sequence):
            return False
        hits = self._allocate(sequence, 0)
        if hits is None:
            return False
        self.waiting.remove(sequence)
        self.run(sequence)
        # A context that the cache holds entirely still lacks its logits: its last token runs again.
        sequence.recompute_last = hits == sequence.num_tokens
        sequence.num_computed = hits - 1 if sequence.recompute_last else hits
        if sequence.swapped is not None:
            found = hits // self._blocks.block_size * self._blocks.num_groups
            self._swap.load(sequence.swapped, sequence.blocks, found)
            sequence.num_computed = max(sequence.num_computed, sequence.swapped.num_tokens)
            sequence.swapped = None
        if sequence.cached_tokens is None:
            sequence.admitted_s = now_s
            sequence.cached_tokens = sequence.num_computed
        else:
            sequence.cached_tokens = min(sequence.cached_tokens, sequence.num_computed)
        if self._reruns_last and sequence.num_computed and not sequence.recompute_last:
            sequence.recompute_last = True
            sequence.num_computed -= 1
        return True

    def _allocate(self, sequence: Sequence, spare: int) -> int | None:
        """As `BlockManager.allocate`, for the whole context, with a page left for each that grows."""
        return self._blocks.allocate(sequence, sequence.tokens_to_hold, spare + self._growing())

    def _is_full(self) -> bool:
        return len(self.running) >= self._max_running

    def _growing(self) -> int:
        """Blocks that running sequences may need soon, a page each: these stay available at an admission."""
        return sum(1 for sequence in self.running if not sequence.hold) * self._blocks.num_groups

    def _overtakes(self, sequence: Sequence) -> bool:
        """Whether a reservation that ranks before it still waits for room."""
        return bool(self.asking) and self.asking[0].rank < sequence.rank

    def _head_fits(self) -> bool:
        head = self.waiting[0]
        if self._overtakes(head):
            return False
        needed = self._blocks.shortage_of(head, head.tokens_to_hold)
        return needed + self._growing() <= self._blocks.pool.num_available

    def _displace_for_head(self, now_s: float) -> None:
        """Admits the head of the queue over running sequences of a higher priority value.

        Only where it is the next whose context is to run: others would wait with their blocks in hand.
        """
        if not self.waiting or not self.running:
            return
        head = self.waiting[0]
        if self.running[-1].request.priority <= head.request.priority or self._overtakes(head):
            return
        if any(s.num_uncomputed > 1 for s in takewhile(lambda s: s.rank < head.rank, self.running)):
            return
        if (self._is_full() or not self._head_fits()) and self._displace_for(head, 0, places=1):
            self._admit(head, now_s)

    def _displace_for(self, sequence: Sequence, spare: int, *, places: int) -> bool:
        """Preempts sequences of a higher priority value, the last first, until this one fits.

        Args:
            sequence: one that waits or asks and does not fit.
            spare: blocks that must stay available, beside those for growth.
            places: of `max_running`, that it needs.

        Returns:
            Whether it fits now. False where all of them would not be enough; then mostly none is preempted.
        """
        pool = self._blocks.pool
        victims = [
            s for s in reversed(self.running) if not s.hold and s.request.priority > sequence.request.priority
        ]
        gain = sum(self._blocks.sole_blocks(victim) for victim in victims)
        needed = self._blocks.shortage_of(sequence, sequence.tokens_to_hold) + spare
        growing = self._growing() - len(victims) * self._blocks.num_groups
        if needed + growing > pool.num_available + gain:
            return False
        if len(self.running) - len(victims) + places > self._max_running:
            return False
        for victim in victims:
            self._preempt(victim)
            needed = self._blocks.shortage_of(sequence, sequence.tokens_to_hold) + spare
            fits = needed + self._growing() <= pool.num_available
            if fits and len(self.running) + places <= self._max_running:
                return True
        return False

    def _grow(self, sequence: Sequence) -> bool:
        """One more page for a decode, preempting who ranks last; False where that was itself."""
        while not self._blocks.grow(sequence):
            victim = next(other for other in reversed(self.running) if not other.hold)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence) -> None:
        """Back into the queue, its blocks freed."""
        self.running.remove(victim)
        if self._complete is not None:
            self._complete(victim)
        written = self._blocks.pages_for(victim.num_computed) * self._blocks.num_groups
        kept = self._swap.save(victim.blocks[:written], victim.num_computed)
        self._blocks.free(victim)
        victim.swapped = kept
        if kept is None:
            self.recomputes += 1
        else:
            self.swaps += 1
        self.add(victim)
