from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv.block_manager import BlockManager
from engine.sequence import Sequence
from prefix_index.hashing import ChainHasher
from tests.engine.digest_model import request

BLOCK = 2
_arrivals = count()


def sequence(*token_ids: int) -> Sequence:
    return Sequence(request(f"s{next(_arrivals)}", token_ids), next(_arrivals), hold=True, submitted_s=0.0)


def manager(num_blocks: int = 6, cache: bool = True) -> BlockManager:
    return BlockManager(num_blocks, BLOCK, num_blocks, ChainHasher("m", BLOCK) if cache else None)


def compute(blocks: BlockManager, item: Sequence) -> None:
    """As if a step had run all of the sequence's tokens."""
    item.num_computed = item.num_tokens
    blocks.seal(item)


def test_hits_are_shared_and_counted() -> None:
    blocks = manager()
    first, second = sequence(1, 2, 3, 4, 5), sequence(1, 2, 3, 4, 6)
    assert blocks.shortage_of(first, 5) == 3
    assert blocks.allocate(first, 5, spare=0) == 0
    compute(blocks, first)
    assert blocks.shortage_of(second, 5) == 1
    assert blocks.allocate(second, 5, spare=0) == 4
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]
    blocks.check_invariants([first, second])
    assert blocks.free(first) == [first_own := 3]
    assert blocks.pool.references(first_own) == 0
    assert blocks.free(second) == [4]
    # Now nobody holds the hits: they count as taken, for they would be no longer available.
    assert blocks.shortage_of(sequence(1, 2, 3, 4, 6), 5) == 3
    blocks.check_invariants([])


def test_room_must_leave_the_spare_blocks() -> None:
    blocks = manager(4)
    item = sequence(1, 2, 3, 4, 5)
    assert blocks.allocate(item, 5, spare=2) is None
    assert item.blocks == []
    assert blocks.pool.num_free == 4
    assert blocks.allocate(item, 5, spare=1) == 0
    assert blocks.grow(item)
    assert not blocks.grow(item)
    assert len(item.blocks) == 4


def test_idle_hits_are_no_room() -> None:
    blocks = manager(4)
    first = sequence(1, 2, 3, 4)
    assert blocks.allocate(first, 4, spare=0) == 0
    compute(blocks, first)
    blocks.free(first)
    assert (blocks.pool.num_free, blocks.pool.num_cached) == (2, 2)
    # Two hits and three new blocks: the hits must not be evicted for the third.
    longer = sequence(*range(1, 11))
    assert blocks.allocate(longer, 10, spare=0) is None
    assert blocks.pool.num_cached == 2
    fitting = sequence(*range(1, 9))
    assert blocks.allocate(fitting, 8, spare=0) == 4


def test_a_late_twin_takes_the_published_block_over() -> None:
    blocks = manager()
    first, second = sequence(1, 2, 3), sequence(1, 2, 4)
    for item in (first, second):
        assert blocks.allocate(item, 3, spare=0) == 0
    own = second.blocks[0]
    compute(blocks, first)
    compute(blocks, second)
    assert second.blocks[0] == first.blocks[0]
    assert blocks.pool.references(own) == 0
    blocks.check_invariants([first, second])


def test_children_of_a_dropped_block_are_not_published() -> None:
    blocks = manager()
    first = sequence(1, 2, 3, 4, 5)
    assert blocks.allocate(first, 5, spare=0) == 0
    first.num_computed = 2
    blocks.seal(first)
    assert blocks.forget(first.blocks) == []
    twin = sequence(1, 2)
    assert blocks.allocate(twin, 2, spare=0) == 0
    compute(blocks, twin)
    # The name is back, with another block: a child of the old one would outlive it in the cache.
    compute(blocks, first)
    assert len(blocks.cache) == 1
    blocks.check_invariants([first, twin])
    assert sorted(blocks.free(first)) == [1, 2, 3]
    blocks.check_invariants([twin])


def test_forgetting_frees_what_nobody_holds() -> None:
    blocks = manager()
    first = sequence(1, 2, 3, 4)
    assert blocks.allocate(first, 4, spare=0) == 0
    compute(blocks, first)
    held = list(first.blocks)
    blocks.free(first)
    assert blocks.forget(held[1:]) == held[1:]
    assert blocks.forget(held) == held[:1]
    assert blocks.pool.num_free == 6


def test_without_a_hasher_nothing_is_kept() -> None:
    blocks = manager(cache=False)
    item = sequence(1, 2, 3)
    assert blocks.allocate(item, 3, spare=0) == 0
    compute(blocks, item)
    assert len(blocks.cache) == 0
    assert sorted(blocks.free(item)) == [1, 2]
    blocks.check_invariants([])


def test_invariants_name_the_fault() -> None:
    blocks = manager()
    item = sequence(1, 2, 3, 4)
    assert blocks.allocate(item, 4, spare=0) == 0
    with pytest.raises(AssertionError, match="as many references as holders"):
        blocks.check_invariants([])
    item.blocks.reverse()
    with pytest.raises(AssertionError, match="mirrors its blocks"):
        blocks.check_invariants([item])
    item.blocks.reverse()
    item.num_computed = 5
    with pytest.raises(AssertionError, match="hold its computed tokens"):
        blocks.check_invariants([item])


@settings(max_examples=100, deadline=None)
@given(
    chains=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=10), min_size=2, max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_eviction_takes_leaves_first_and_the_longest_unused(chains: list[list[int]], order: object) -> None:
    """Whatever was shared and in whatever order it was let go: evicting never orphans a child, and never
    takes a block used later than one that could go."""
    blocks = manager(60)
    live: list[Sequence] = []
    for chain in chains:
        item = sequence(*chain)
        assert blocks.allocate(item, len(chain), spare=0) is not None
        compute(blocks, item)
        live.append(item)
        blocks.check_invariants(live)
    order.shuffle(live)  # type: ignore[attr-defined]
    last_use: dict[bytes, int] = {}
    for moment, item in enumerate(list(live)):
        hashes = item.block_hashes[: item.num_tokens // BLOCK]
        last_use.update(dict.fromkeys(hashes, moment))
        live.remove(item)
        blocks.free(item)
        blocks.check_invariants(live)
    blocks.cache.take_events()
    # Take the whole pool: everything cached must go, one by one.
    filler = sequence(*([9] * (60 * BLOCK)))
    assert blocks.allocate(filler, 60 * BLOCK, spare=0) == 0
    evicted = blocks.cache.take_events().evicted
    assert set(evicted) == set(last_use)
    uses = [last_use[name] for name in evicted]
    assert uses == sorted(uses)
