"""Which tokens of which sequences run in the next step.

Running decodes go first, then chunks of prefills, oldest first, then whoever waits, strictly in order of
arrival. When blocks run out the latest arrival is preempted: its blocks are freed and it is recomputed
later, its tokens kept. Why nothing waits for ever:

- a sequence is admitted only when its whole context fits, so a prefill never needs another block;
- only decodes grow; one that cannot preempts whoever came last, at worst itself, so the oldest goes on;
- held prefills and reservations are never preempted, but they need nothing either: the queue waits until
  they are let go;
- a reservation that finds no room has its place by arrival too: it leaves the head of the queue its room
  where that came first, and nobody who came later is admitted before it;
- no sequence can outgrow the pool: the engine limits lengths to what the pool holds.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from engine.kv.block_manager import BlockManager
from engine.kv.block_pool import require
from engine.sequence import Sequence, SequenceStatus


@dataclass(slots=True)
class Schedule:
    """One step's work: `counts[i]` tokens of `sequences[i]`, from its `num_computed` on."""

    sequences: list[Sequence] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    num_tokens: int = 0

    def add(self, sequence: Sequence, count: int) -> None:
        """Puts `count` tokens of a sequence into the step."""
        self.sequences.append(sequence)
        self.counts.append(count)
        self.num_tokens += count


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival


class Scheduler:
    """Queues and the policy over them.

    Args:
        blocks: gives and takes the sequences' blocks.
        max_batched_tokens: token budget of a step.
        max_running: most sequences in a step, and most admitted from the queue at a time. Adopted
            sequences may exceed it, for their blocks are held already; they take turns in order of arrival.
        prefill_chunk: most tokens of one prefill in a step.
    """

    def __init__(
        self, blocks: BlockManager, max_batched_tokens: int, max_running: int, prefill_chunk: int
    ) -> None:
        for name, value in (
            ("max_batched_tokens", max_batched_tokens),
            ("max_running", max_running),
            ("prefill_chunk", prefill_chunk),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self._blocks = blocks
        self._max_batched_tokens = max_batched_tokens
        self._max_running = max_running
        self._prefill_chunk = prefill_chunk
        # All in order of arrival.
        self.asking: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence into the queue."""
        sequence.status = SequenceStatus.WAITING
        insort(self.waiting, sequence, key=_arrival)

    def reserve(self, sequence: Sequence) -> int | None:
        """Allocates for KV that comes from elsewhere; the tokens of prefix hits, None without room.

        Without room the sequence keeps its place before later arrivals, until it is tried again or removed.
        """
        spare = self._growing()
        if self.waiting and self.waiting[0].arrival < sequence.arrival:
            head = self.waiting[0]
            spare += self._blocks.shortage_of(head, head.tokens_to_hold)
        hits = self._blocks.allocate(sequence, sequence.tokens_to_hold, spare)
        if sequence.status is SequenceStatus.ASKING:
            self.asking.remove(sequence)
        sequence.status = SequenceStatus.RESERVED if hits is not None else SequenceStatus.ASKING
        if hits is None:
            insort(self.asking, sequence, key=_arrival)
        return hits

    def run(self, sequence: Sequence) -> None:
        """Lets a sequence whose context is computed, and whose blocks it holds, decode on."""
        sequence.status = SequenceStatus.RUNNING
        insort(self.running, sequence, key=_arrival)

    def remove(self, sequence: Sequence, status: SequenceStatus) -> None:
        """Takes a sequence out of the queues; its blocks stay its own."""
        if sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
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
        batch = Schedule()
        self._add_decodes(batch)
        self._add_prefills(batch)
        self._admit(batch, now_s)
        return batch

    def check_invariants(self) -> None:
        """Raises AssertionError naming the broken invariant."""
        for queue, status in (
            (self.asking, SequenceStatus.ASKING),
            (self.waiting, SequenceStatus.WAITING),
            (self.running, SequenceStatus.RUNNING),
        ):
            order = [sequence.arrival for sequence in queue]
            require(order == sorted(set(order)), f"{status.name} is in order of arrival, each once")
            require(all(s.status is status for s in queue), f"those in {status.name} have that status")
        require(all(not s.blocks for s in self.waiting), "waiting sequences hold no blocks")
        require(all(s.num_computed == 0 for s in self.waiting), "waiting sequences have nothing computed")
        for sequence in self.running:
            require(sequence.num_uncomputed >= 1, f"{sequence.request_id} has a token to run")
            if not sequence.context_done or sequence.num_uncomputed > 1:
                require(
                    len(sequence.blocks) >= self._blocks.blocks_for(sequence.num_tokens),
                    f"the whole context of {sequence.request_id} has its blocks",
                )

    def _room(self, batch: Schedule) -> int:
        """Tokens that one more sequence may have in this step."""
        if len(batch.sequences) >= self._max_running:
            return 0
        return self._max_batched_tokens - batch.num_tokens

    def _add_decodes(self, batch: Schedule) -> None:
        block_size = self._blocks.block_size
        running = self.running
        index = 0
        # `running` shrinks from behind while this loop preempts.
        while index < len(running) and self._room(batch):
            sequence = running[index]
            index += 1
            if len(sequence.token_ids) - sequence.num_computed != 1:
                continue
            if sequence.num_computed >= len(sequence.blocks) * block_size and not self._grow(sequence):
                index -= 1
                continue
            batch.add(sequence, 1)

    def _add_prefills(self, batch: Schedule) -> None:
        for sequence in self.running:
            room = self._room(batch)
            if not room:
                break
            if sequence.num_uncomputed > 1:
                batch.add(sequence, min(sequence.num_uncomputed, self._prefill_chunk, room))

    def _admit(self, batch: Schedule, now_s: float) -> None:
        growing = self._growing() if self.waiting else 0
        while self.waiting and len(self.running) < self._max_running:
            room = self._room(batch)
            if not room:
                break
            sequence = self.waiting[0]
            if self._overtakes(sequence):
                break
            hits = self._blocks.allocate(sequence, sequence.tokens_to_hold, spare=growing)
            if hits is None:
                break
            del self.waiting[0]
            self.run(sequence)
            growing += not sequence.hold
            # A context that the cache holds entirely still lacks its logits: its last token runs again.
            sequence.recompute_last = hits == sequence.num_tokens
            sequence.num_computed = hits - 1 if sequence.recompute_last else hits
            if sequence.cached_tokens is None:
                sequence.admitted_s = now_s
                sequence.cached_tokens = sequence.num_computed
            else:
                sequence.cached_tokens = min(sequence.cached_tokens, sequence.num_computed)
            batch.add(sequence, min(sequence.num_uncomputed, self._prefill_chunk, room))

    def _growing(self) -> int:
        """Running sequences that may each need a block soon: so many stay available at an admission."""
        return sum(1 for sequence in self.running if not sequence.hold)

    def _overtakes(self, sequence: Sequence) -> bool:
        """Whether a reservation that arrived earlier still waits for room."""
        return bool(self.asking) and self.asking[0].arrival < sequence.arrival

    def _head_fits(self) -> bool:
        head = self.waiting[0]
        if self._overtakes(head):
            return False
        needed = self._blocks.shortage_of(head, head.tokens_to_hold)
        return needed + self._growing() <= self._blocks.pool.num_available

    def _grow(self, sequence: Sequence) -> bool:
        """One more block for a decode, preempting the latest arrivals; False where that was itself."""
        while not self._blocks.grow(sequence):
            victim = next(other for other in reversed(self.running) if not other.hold)
            self.running.remove(victim)
            self._blocks.free(victim)
            self.add(victim)
            self.preemptions += 1
            if victim is sequence:
                return False
        return True
