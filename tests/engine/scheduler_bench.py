"""A scheduler with real blocks, without a model."""

from __future__ import annotations

import dataclasses

from engine.kv.block_manager import BlockManager
from engine.kv.swap import SwapSpace
from engine.prefill_budget import PrefillBudget
from engine.schedule import Schedule
from engine.scheduler import Scheduler
from engine.sequence import Sequence, SequenceStatus
from engine.step_cost import StepCost
from prefix_index.hashing import ChainHasher
from tests.engine.digest_model import request
from tests.support.swap_memory import ListedHost

BLOCK = 4


class Bench:
    """A scheduler with somebody who plays the model: each context that is done gets the token 1.

    With `drafts` each decode is to have so many; all of them are wrong.
    """

    def __init__(
        self,
        num_blocks: int = 64,
        budget: int = 100,
        running: int = 8,
        chunk: int = 100,
        cache: bool = False,
        slowdown: float = 0.0,
        swap: int = 0,
        drafts: int = 0,
    ) -> None:
        hasher = ChainHasher("m", BLOCK) if cache else None
        self.blocks = BlockManager(num_blocks, BLOCK, num_blocks, hasher)
        self.cost = StepCost()
        self.host = ListedHost(swap)
        self.swap = SwapSpace(self.host, lambda: None, clock=float)
        self.scheduler = Scheduler(
            self.blocks,
            PrefillBudget(self.cost, slowdown, burst_tokens=10),
            self.swap,
            max_batched_tokens=budget,
            max_running=running,
            prefill_chunk=chunk,
            wanted_drafts=(lambda decodes: [drafts] * len(decodes)) if drafts else None,
        )
        self.sequences: list[Sequence] = []

    def new(self, length: int, hold: bool = False, priority: int = 0, submitted_s: float = 0.0) -> Sequence:
        number = len(self.sequences)
        # Each prompt is its own, so that nothing is shared by chance.
        prompt = [number % 20] * length
        wanted = dataclasses.replace(request(f"s{number}", prompt), priority=priority)
        sequence = Sequence(wanted, number, hold, submitted_s)
        self.sequences.append(sequence)
        return sequence

    def add(self, length: int, hold: bool = False, priority: int = 0, submitted_s: float = 0.0) -> Sequence:
        sequence = self.new(length, hold, priority, submitted_s)
        self.scheduler.add(sequence)
        return sequence

    def step(self, now_s: float = 1.0) -> Schedule:
        batch = self.scheduler.schedule(now_s)
        assert batch.num_tokens == sum(batch.counts)
        drafts = [*batch.lookahead, *[0] * (len(batch.sequences) - len(batch.lookahead))]
        for sequence, count, drafted in zip(batch.sequences, batch.counts, drafts, strict=True):
            sequence.num_computed += count - drafted
            sequence.recompute_last = False
            self.blocks.seal(sequence)
            if sequence.num_computed == sequence.num_tokens:
                sequence.context_done = True
                sequence.token_ids.append(1)
                if sequence.hold:
                    self.scheduler.remove(sequence, SequenceStatus.HELD)
            if batch.lookahead and sequence.blocks:
                self.blocks.trim(sequence)
        self.scheduler.check_invariants()
        self.blocks.check_invariants(s for s in self.sequences if s.blocks)
        return batch

    def end(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence, SequenceStatus.ENDED)
        self.blocks.free(sequence)

    def planned(self, now_s: float = 1.0) -> list[tuple[int, int]]:
        batch = self.step(now_s)
        return [(s.arrival, count) for s, count in zip(batch.sequences, batch.counts, strict=True)]
