from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.kv.prefix_cache import PrefixCache

# A name is its path: b"ab" is the child of b"a".
NAMES = st.binary(min_size=1, max_size=4).map(lambda raw: bytes(97 + byte % 2 for byte in raw))


def parent_of(name: bytes) -> bytes | None:
    return name[:-1] or None


class CacheMachine(RuleBasedStateMachine):
    """The cache against a set of names; a subscriber that knows only the events must agree with it."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache()
        self.blocks: dict[bytes, int] = {}
        self.next_block = 1
        self.subscriber: set[bytes] = set()

    @rule(name=NAMES)
    def publish(self, name: bytes) -> None:
        block, self.next_block = self.next_block, self.next_block + 1
        parent = parent_of(name)
        if name in self.blocks or (parent is not None and parent not in self.blocks):
            with pytest.raises(ValueError, match="published"):
                self.cache.publish(block, name, parent)
            return
        self.cache.publish(block, name, parent)
        self.blocks[name] = block

    @rule(name=NAMES)
    def evict(self, name: bytes) -> None:
        block = self.blocks.get(name)
        if block is None:
            return
        if any(parent_of(other) == name for other in self.blocks):
            with pytest.raises(ValueError, match="published children"):
                self.cache.evict(block)
            return
        self.cache.evict(block)
        del self.blocks[name]

    @rule(names=st.lists(NAMES, max_size=2))
    def forget(self, names: list[bytes]) -> None:
        blocks = [self.blocks.get(name, 0) for name in names]
        known = [name for name in names if name in self.blocks]
        doomed = {other for other in self.blocks if any(other.startswith(name) for name in known)}
        assert set(self.cache.forget(blocks)) == {self.blocks[name] for name in doomed}
        for name in doomed:
            del self.blocks[name]

    @rule()
    def take_events(self) -> None:
        before = set(self.subscriber)
        events = self.cache.take_events()
        assert not self.cache.has_events
        assert not set(events.stored) & set(events.evicted)
        assert before.isdisjoint(events.stored)
        assert before.issuperset(events.evicted)
        self.subscriber = before.union(events.stored) - set(events.evicted)
        assert self.subscriber == set(self.blocks)

    @rule(name=NAMES)
    def match(self, name: bytes) -> None:
        chain = [name[:length] for length in range(1, len(name) + 1)]
        expected = []
        for link in chain:
            if link not in self.blocks:
                break
            expected.append(self.blocks[link])
        assert self.cache.match(chain) == expected

    @invariant()
    def agrees(self) -> None:
        self.cache.check_invariants()
        names = self.cache.hashes()
        assert set(names) == set(self.blocks)
        assert len(self.cache) == len(self.blocks)
        for place, name in enumerate(names):
            assert parent_of(name) is None or parent_of(name) in names[:place]
            assert self.cache.block_of(name) == self.blocks[name]
            assert self.blocks[name] in self.cache


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase


def test_stored_and_evicted_within_a_step_is_in_neither() -> None:
    cache = PrefixCache()
    cache.publish(1, b"a", None)
    cache.evict(1)
    events = cache.take_events()
    assert (events.stored, events.evicted) == ((), ())


def test_evicted_and_stored_again_within_a_step_is_in_neither() -> None:
    cache = PrefixCache()
    cache.publish(1, b"a", None)
    assert cache.take_events().stored == (b"a",)
    cache.evict(1)
    cache.publish(2, b"a", None)
    assert not cache.has_events
    assert cache.block_of(b"a") == 2


def test_forgetting_reports_children_first() -> None:
    cache = PrefixCache()
    for block, name in enumerate((b"a", b"ab", b"abb", b"b"), start=1):
        cache.publish(block, name, parent_of(name))
    assert cache.forget([1]) == [3, 2, 1]
    assert cache.hashes() == [b"b"]


def test_check_invariants_finds_an_orphan() -> None:
    cache = PrefixCache()
    cache.publish(1, b"a", None)
    cache.publish(2, b"ab", b"a")
    del cache._blocks[b"a"]
    del cache._entries[1]
    with pytest.raises(AssertionError, match="after its parent"):
        cache.check_invariants()
