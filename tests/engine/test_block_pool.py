from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from engine.kv.block_pool import BlockPool, OutOfBlocksError

SIZE = 6


class PoolMachine(RuleBasedStateMachine):
    """The pool against plain sets."""

    blocks = Bundle("blocks")

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[int] = []
        self.pool = BlockPool(SIZE, self.evicted.append)
        self.references: dict[int, int] = {}
        self.cached: list[int] = []
        self.quarantined: set[int] = set()
        self.free = set(range(1, SIZE + 1))

    @precondition(lambda self: self.free or self.cached)
    @rule(target=blocks)
    def allocate(self) -> int:
        evicted_before = len(self.evicted)
        block = self.pool.allocate()
        if self.free:
            self.free.remove(block)
            assert len(self.evicted) == evicted_before
        else:
            assert block == self.cached.pop(0)
            assert self.evicted[evicted_before:] == [block]
        self.references[block] = 1
        return block

    @precondition(lambda self: not self.free and not self.cached)
    @rule()
    def allocate_too_much(self) -> None:
        with pytest.raises(OutOfBlocksError):
            self.pool.allocate()

    @rule(block=blocks)
    def acquire(self, block: int) -> None:
        if block not in self.references and block not in self.cached:
            with pytest.raises(ValueError, match="neither pinned nor cached"):
                self.pool.acquire(block)
            return
        self.pool.acquire(block)
        self.references[block] = self.references.get(block, 0) + 1
        if block in self.cached:
            self.cached.remove(block)

    @rule(block=blocks, keep=st.booleans())
    def release(self, block: int, keep: bool) -> None:
        if block not in self.references:
            with pytest.raises(ValueError, match="no holder"):
                self.pool.release(block, keep)
            return
        self.pool.release(block, keep)
        self.references[block] -= 1
        if not self.references[block]:
            del self.references[block]
            if keep:
                self.cached.append(block)
            else:
                self.free.add(block)

    @rule(block=blocks)
    def quarantine(self, block: int) -> None:
        if self.references.get(block) != 1:
            with pytest.raises(ValueError, match="not one"):
                self.pool.quarantine(block)
            return
        self.pool.quarantine(block)
        del self.references[block]
        self.quarantined.add(block)

    @rule(chosen=st.lists(st.integers(1, SIZE), max_size=3))
    def settle(self, chosen: list[int]) -> None:
        if not self.quarantined.issuperset(chosen):
            with pytest.raises(ValueError, match="not in quarantine"):
                self.pool.settle(chosen)
            return
        self.pool.settle(chosen)
        self.quarantined -= set(chosen)
        self.free |= set(chosen)

    @rule(block=blocks)
    def discard(self, block: int) -> None:
        self.pool.discard(block)
        if block in self.cached:
            self.cached.remove(block)
            self.free.add(block)

    @invariant()
    def agrees(self) -> None:
        pool = self.pool
        pool.check_invariants()
        assert pool.num_free == len(self.free)
        assert pool.cached_blocks() == self.cached
        assert pool.num_cached == len(self.cached)
        assert pool.num_pinned == len(self.references)
        assert pool.num_quarantined == len(self.quarantined)
        assert pool.num_available == len(self.free) + len(self.cached)
        for block in range(1, SIZE + 1):
            assert pool.references(block) == self.references.get(block, 0)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase


def test_blocks_come_out_in_ascending_runs() -> None:
    pool = BlockPool(8, lambda block: None)
    first = [pool.allocate() for _ in range(5)]
    assert first == [1, 2, 3, 4, 5]
    for block in reversed(first):
        pool.release(block, keep=False)
    assert [pool.allocate() for _ in range(6)] == [1, 2, 3, 4, 5, 6]


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0, lambda block: None)


def test_check_invariants_finds_each_fault() -> None:
    pool = BlockPool(3, lambda block: None)
    block = pool.allocate()
    pool._free.append(block)
    with pytest.raises(AssertionError, match=r"free 3 \+ cached 0 \+ pinned 1"):
        pool.check_invariants()
    pool._free = [2, 2]
    with pytest.raises(AssertionError, match="twice on the free list"):
        pool.check_invariants()
    pool._free = [2, 0]
    with pytest.raises(AssertionError, match="exactly one state"):
        pool.check_invariants()
    pool._free = [2, 3]
    pool._num_pinned = 2
    with pytest.raises(AssertionError, match="pinned blocks"):
        pool.check_invariants()
