"""Who holds which physical block. Knows nothing of tokens, hashes or sequences.

    allocate            release(keep=False)
 free --------> pinned --------------------> free
                  |  ^  release(keep=True)
                  |  +-- acquire --- cached --- evicted by allocate, or discard --> free
                  +-- quarantine --> quarantined -- settle --> free

Block 0 is the scratch block: it is never handed out and counted nowhere.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

SCRATCH_BLOCK = 0


class OutOfBlocksError(RuntimeError):
    """`allocate` was called with neither a free nor a cached block left."""


def require(condition: bool, invariant: str) -> None:
    """Raises AssertionError naming `invariant` where `condition` is false."""
    if not condition:
        raise AssertionError(invariant)


class BlockPool:
    """Reference counts, the free list, cached blocks in order of their last use, and the quarantine.

    Args:
        num_blocks: blocks that can be handed out; their ids are 1 to `num_blocks`.
        on_evict: told of each cached block that `allocate` takes back, before it is handed out.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        if num_blocks < 1:
            raise ValueError(f"the pool needs at least one block beside the scratch block, not {num_blocks}")
        self.total = num_blocks
        self._on_evict = on_evict
        self._references = [0] * (num_blocks + 1)
        # A stack: with sequences released leaf first, blocks come out in ascending runs again, which
        # transfers merge into fewer descriptors.
        self._free = list(range(num_blocks, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._quarantined: set[int] = set()
        self._num_pinned = 0

    @property
    def num_free(self) -> int:
        """Blocks with no content worth keeping."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that are kept for prefix hits."""
        return len(self._cached)

    @property
    def num_pinned(self) -> int:
        """Blocks held by at least one sequence."""
        return self._num_pinned

    @property
    def num_quarantined(self) -> int:
        """Blocks that a read which has not ended may still write to."""
        return len(self._quarantined)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out."""
        return len(self._free) + len(self._cached)

    def references(self, block: int) -> int:
        """How many sequences hold the block."""
        return self._references[block]

    def is_quarantined(self, block: int) -> bool:
        """Whether the block waits for `settle`."""
        return block in self._quarantined

    def allocate(self) -> int:
        """Hands out a block with one reference, evicting the longest unused cached one if none is free."""
        if self._free:
            block = self._free.pop()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            self._on_evict(block)
        else:
            raise OutOfBlocksError(f"all {self.total} blocks are pinned or quarantined")
        self._references[block] = 1
        self._num_pinned += 1
        return block

    def acquire(self, block: int) -> None:
        """One more holder of a block that is pinned or cached."""
        if self._references[block] == 0:
            if block not in self._cached:
                raise ValueError(f"block {block} is neither pinned nor cached")
            del self._cached[block]
            self._num_pinned += 1
        self._references[block] += 1

    def release(self, block: int, keep: bool) -> None:
        """One holder less. The last one leaves the block cached where `keep`, else free."""
        if self._references[block] == 0:
            raise ValueError(f"block {block} has no holder")
        self._references[block] -= 1
        if self._references[block] == 0:
            self._num_pinned -= 1
            if keep:
                self._cached[block] = None
            else:
                self._free.append(block)

    def quarantine(self, block: int) -> None:
        """Takes a block from its only holder and gives it to nobody until `settle`."""
        if self._references[block] != 1:
            raise ValueError(f"block {block} has {self._references[block]} holders, not one")
        self._references[block] = 0
        self._num_pinned -= 1
        self._quarantined.add(block)

    def settle(self, blocks: Sequence[int]) -> None:
        """Frees quarantined blocks. Raises ValueError, changing nothing, for any other block."""
        strangers = sorted(set(blocks) - self._quarantined)
        if strangers:
            raise ValueError(f"blocks {strangers} are not in quarantine")
        for block in dict.fromkeys(blocks):
            self._quarantined.remove(block)
            self._free.append(block)

    def discard(self, block: int) -> None:
        """Frees a cached block whose content is no longer wanted; does nothing to a pinned one."""
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)

    def cached_blocks(self) -> list[int]:
        """Cached blocks, the next to be evicted first."""
        return list(self._cached)

    def check_invariants(self) -> None:
        """Raises AssertionError naming the broken invariant."""
        pinned = {block for block, count in enumerate(self._references) if count > 0}
        free = set(self._free)
        require(min(self._references) >= 0, "reference counts are not negative")
        require(len(free) == len(self._free), "no block is twice on the free list")
        require(len(pinned) == self._num_pinned, "pinned blocks are those with references")
        states = (free, set(self._cached), pinned, self._quarantined)
        require(
            sum(len(state) for state in states) == self.total,
            f"free {len(free)} + cached {len(self._cached)} + pinned {len(pinned)} "
            f"+ quarantined {len(self._quarantined)} = total {self.total}",
        )
        require(
            set().union(*states) == set(range(1, self.total + 1)),
            "every block but the scratch block is in exactly one state",
        )
