"""Which block holds which prefix: names to blocks, and the changes to be published.

The cache is prefix-closed: a block is in it only while its parent is. Eviction keeps it so, because a
sequence holds a block's parents whenever it holds the block and lets them go after it; the order of last
use is then leaves first by itself.

That of layers with a window is open instead: sequences let go first what lies behind the window, a block's
name still stands for all tokens before it, and a hit needs no more than what the window reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.api import CacheEvents
from engine.kv.block_pool import require


@dataclass(slots=True)
class _Entry:
    """A published block. `parent` is None for a sequence's first block."""

    block_hash: bytes
    parent: bytes | None
    children: int = 0


class PrefixCache:
    """Full blocks whose KV is written, by their chained hash.

    Args:
        closed: whether a block is here only while its parent is.
    """

    def __init__(self, closed: bool = True) -> None:
        self._closed = closed
        # Insertion order is parents before children: nothing enters before its parent does.
        self._blocks: dict[bytes, int] = {}
        self._entries: dict[int, _Entry] = {}
        self._stored: dict[bytes, None] = {}
        self._evicted: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: int) -> bool:
        return block in self._entries

    @property
    def has_events(self) -> bool:
        """Whether `take_events` would return any."""
        return bool(self._stored or self._evicted)

    def block_of(self, block_hash: bytes) -> int | None:
        """The block of that name."""
        return self._blocks.get(block_hash)

    def match(self, block_hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest leading part of the chain that the cache holds."""
        blocks: list[int] = []
        for block_hash in block_hashes:
            block = self._blocks.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def publish(self, block: int, block_hash: bytes, parent: bytes | None) -> None:
        """Enters a written block. Raises ValueError where name or block is taken or the parent absent."""
        if block_hash in self._blocks or block in self._entries:
            raise ValueError(f"block {block} or its name {block_hash.hex()} is published already")
        if parent is not None and self._closed:
            if parent not in self._blocks:
                raise ValueError(f"the parent of block {block} is not published")
            self._entries[self._blocks[parent]].children += 1
        self._blocks[block_hash] = block
        self._entries[block] = _Entry(block_hash, parent)
        # Events are the net change: an eviction taken back is none.
        if block_hash in self._evicted:
            del self._evicted[block_hash]
        else:
            self._stored[block_hash] = None

    def evict(self, block: int) -> None:
        """Removes a block. Raises ValueError where another hangs on it."""
        entry = self._entries[block]
        if entry.children:
            raise ValueError(f"block {block} has {entry.children} published children")
        del self._entries[block]
        del self._blocks[entry.block_hash]
        if entry.parent is not None and self._closed:
            self._entries[self._blocks[entry.parent]].children -= 1
        if entry.block_hash in self._stored:
            del self._stored[entry.block_hash]
        else:
            self._evicted[entry.block_hash] = None

    def forget(self, blocks: Sequence[int]) -> list[int]:
        """Removes blocks and all that hang on them; returns what was removed, children first.

        For content found to be wrong; walks the whole cache.
        """
        doomed = {self._entries[block].block_hash for block in blocks if block in self._entries}
        order: list[int] = []
        known = -1
        # One round where parents come before their children, as they do in a closed cache.
        while known < len(doomed):
            known = len(doomed)
            order = []
            for block_hash, block in self._blocks.items():
                if block_hash in doomed or self._entries[block].parent in doomed:
                    doomed.add(block_hash)
                    order.append(block)
        order.reverse()
        for block in order:
            self.evict(block)
        return order

    def hashes(self) -> list[bytes]:
        """All names, parents before children."""
        return list(self._blocks)

    def links(self) -> list[tuple[int, int]]:
        """All (block, parent block) pairs that eviction must respect."""
        if not self._closed:
            return []
        return [
            (block, self._blocks[entry.parent])
            for block, entry in self._entries.items()
            if entry.parent is not None
        ]

    def take_events(self) -> CacheEvents:
        """The net changes since the last call."""
        events = CacheEvents(stored=tuple(self._stored), evicted=tuple(self._evicted))
        self._stored.clear()
        self._evicted.clear()
        return events

    def check_invariants(self) -> None:
        """Raises AssertionError naming the broken invariant."""
        require(len(self._blocks) == len(self._entries), "published names and blocks are one to one")
        children = dict.fromkeys(self._entries, 0)
        seen: set[bytes] = set()
        for block_hash, block in self._blocks.items():
            entry = self._entries.get(block)
            require(entry is not None, "each published name has its block")
            assert entry is not None
            require(entry.block_hash == block_hash, "a block and its name point at each other")
            if entry.parent is not None and self._closed:
                require(entry.parent in seen, "a block is published after its parent, and only with it")
                children[self._blocks[entry.parent]] += 1
            seen.add(block_hash)
        require(
            all(self._entries[block].children == count for block, count in children.items()),
            "children of published blocks are counted right",
        )
