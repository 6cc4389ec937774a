"""KV of a draft model: a pool of its own, beside the target's, in blocks that sequences lease.

A sequence gets the blocks of all its tokens at once or none, and one that can get no more gives up what it
has: so what is left over always serves those that draft, and no two wait for each other.
"""

from __future__ import annotations

import weakref

import torch

from engine.kv.block_pool import BlockPool, require
from engine.kv.storage import allocate_pool
from engine.models.config import ModelConfig


class Lease:
    """Blocks of one sequence, page by page, one of each layer group. They are free when it is forgotten."""

    __slots__ = ("__weakref__", "blocks")

    def __init__(self) -> None:
        self.blocks: list[int] = []


class DraftCache:
    """The pool and who holds what of it.

    Args:
        config: of the draft model.
        num_blocks: in the pool, the scratch block not counted.
        block_size: tokens in a block.
        dtype: of the KV.
        device: torch device.

    Attributes:
        kv: the pool, [blocks, layers of a group, 2, kv_heads, block_size, head_dim].
        num_groups: blocks of a page.

    Raises:
        KvMemoryError: too few blocks, or the memory is not there.
    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: str
    ) -> None:
        self.kv = allocate_pool(config, num_blocks, block_size, dtype, device)
        self.block_size = block_size
        self.num_groups = len(config.layer_groups)
        self._pool = BlockPool(num_blocks, on_evict=_nothing_is_cached)
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return self._pool.num_free

    def lease(self) -> Lease:
        """An empty lease."""
        lease = Lease()
        self._leases.add(lease)
        # Sequences end in many ways, and all of them let go what a drafter keeps for them.
        weakref.finalize(lease, _give_back, self._pool, lease.blocks).atexit = False
        return lease

    def reach(self, lease: Lease, num_tokens: int) -> bool:
        """Grows a lease to hold so many tokens; where it cannot, the lease is empty afterwards.

        One that is empty before must leave a page for each that is not, or they would soon give up in turn.
        """
        wanted = -(-num_tokens // self.block_size) * self.num_groups - len(lease.blocks)
        if wanted <= 0:
            return True
        others = 0 if lease.blocks else sum(bool(each.blocks) for each in self._leases)
        if self._pool.num_available < wanted + others * self.num_groups:
            _give_back(self._pool, lease.blocks)
            return False
        lease.blocks += [self._pool.allocate() for _ in range(wanted)]
        return True

    def scrub(self, lease: Lease) -> None:
        """Zeroes a lease's blocks and empties it: NaN would spread even through masked attention."""
        self.kv[lease.blocks] = 0
        _give_back(self._pool, lease.blocks)

    def check_invariants(self) -> None:
        """Raises AssertionError naming the broken invariant."""
        self._pool.check_invariants()
        held = [block for lease in self._leases for block in lease.blocks]
        require(len(set(held)) == len(held), "no block is leased twice")
        require(len(held) == self._pool.num_pinned, "pinned blocks are those of leases")
        require(not self._pool.num_cached, "nothing is cached")
        require(
            all(len(lease.blocks) % self.num_groups == 0 for lease in self._leases),
            "the pages of leases are whole",
        )


def _give_back(pool: BlockPool, blocks: list[int]) -> None:
    # The last block first, so that blocks come out in ascending order again.
    while blocks:
        pool.release(blocks.pop(), keep=False)


def _nothing_is_cached(block: int) -> None:
    raise AssertionError(f"block {block} was cached")
