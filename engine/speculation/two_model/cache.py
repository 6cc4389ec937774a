"""KV of a draft model: a pool of its own beside the target's, and who holds which of its blocks.

A sequence gets the blocks of all its tokens at once or none, and one that can get no more gives up what it
has: so what is left over always serves those that draft, and no two wait for each other.
"""

from __future__ import annotations

import weakref

import torch

from engine.kv.block_pool import BlockPool, require
from engine.kv.storage import allocate_pool
from engine.models.config import ModelConfig


class DraftBlocks:
    """What one sequence holds. Its blocks are free as soon as nobody refers to it any more.

    Attributes:
        ids: page by page, one of each layer group.
    """

    __slots__ = ("__weakref__", "ids")

    def __init__(self) -> None:
        self.ids: list[int] = []


class DraftCache:
    """The pool.

    Args:
        config: of the draft model.
        num_blocks: in the pool, the scratch block not counted.
        block_size: tokens in a block.
        dtype: of the KV.
        device: torch device.

    Attributes:
        kv: the pool, [blocks, layers of a group, 2, kv_heads, block_size, head_dim].
        block_size: as given.
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
        self._holders: weakref.WeakSet[DraftBlocks] = weakref.WeakSet()

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return self._pool.num_free

    def open(self) -> DraftBlocks:
        """For one sequence, of no blocks yet."""
        blocks = DraftBlocks()
        self._holders.add(blocks)
        # Sequences end in many ways, and all of them let go what a drafter keeps for them.
        weakref.finalize(blocks, _free, self._pool, blocks.ids).atexit = False
        return blocks

    def reach(self, blocks: DraftBlocks, num_tokens: int) -> bool:
        """Grows what a sequence holds to so many tokens; where that cannot be, it holds nothing afterwards.

        Who holds nothing before must leave a page for each who does, or they would soon give up in turn.
        """
        wanted = -(-num_tokens // self.block_size) * self.num_groups - len(blocks.ids)
        if wanted <= 0:
            return True
        others = 0 if blocks.ids else sum(bool(each.ids) for each in self._holders)
        if self._pool.num_available < wanted + others * self.num_groups:
            _free(self._pool, blocks.ids)
            return False
        blocks.ids += [self._pool.allocate() for _ in range(wanted)]
        return True

    def scrub(self, blocks: DraftBlocks) -> None:
        """Zeroes blocks and frees them, for NaN there would spread even through masked attention."""
        self.kv[blocks.ids] = 0
        _free(self._pool, blocks.ids)

    def check_invariants(self) -> None:
        """Raises AssertionError naming the broken invariant."""
        self._pool.check_invariants()
        held = [block for each in self._holders for block in each.ids]
        require(len(set(held)) == len(held), "no block is held twice")
        require(len(held) == self._pool.num_pinned, "pinned blocks are held by somebody")
        require(not self._pool.num_cached, "nothing is cached")
        require(all(len(each.ids) % self.num_groups == 0 for each in self._holders), "pages are whole")


def _free(pool: BlockPool, ids: list[int]) -> None:
    # The last block first, so that blocks come out in ascending order again.
    while ids:
        pool.release(ids.pop(), keep=False)


def _nothing_is_cached(block: int) -> None:
    raise AssertionError(f"block {block} was cached")
