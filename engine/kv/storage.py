"""The memory of the KV pool: one allocation per process, never freed while the process lives.

The pool is block-major, [blocks, layers, 2, kv_heads, block_size, head_dim]: one block holds K and V of
all layers contiguously, so that one block is one transfer descriptor. Block 0 is scratch: what is written
there is never read.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch

from engine.models.config import ModelConfig

SCRATCH_BLOCKS = 1
MIN_BLOCKS = 2
"""Fewer usable blocks cannot hold one full block and the one that is being filled."""


class KvMemoryError(ValueError):
    """The memory budget cannot hold a usable pool."""


def _shape(config: ModelConfig, blocks: int, block_size: int) -> tuple[int, ...]:
    return (blocks, config.num_layers, 2, config.num_kv_heads, block_size, config.head_dim)


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block: K and V of all layers for `block_size` tokens."""
    return 2 * config.num_layers * config.num_kv_heads * block_size * config.head_dim * dtype.itemsize


def blocks_in_budget(memory_bytes: int, bytes_per_block: int) -> int:
    """Usable blocks of a pool that fits `memory_bytes`, scratch included in the memory but not counted.

    Raises:
        KvMemoryError: the budget holds fewer than `MIN_BLOCKS` beside the scratch block.
    """
    blocks = memory_bytes // bytes_per_block - SCRATCH_BLOCKS
    if blocks < MIN_BLOCKS:
        needed = (MIN_BLOCKS + SCRATCH_BLOCKS) * bytes_per_block
        raise KvMemoryError(
            f"KV memory of {memory_bytes} bytes is too small: one block takes {bytes_per_block} bytes and "
            f"at least {needed} bytes are needed"
        )
    return blocks


def allocate_pool(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: str = "cpu"
) -> torch.Tensor:
    """Allocates the zeroed pool for `num_blocks` usable blocks and the scratch block.

    Zeroed, so that no read of a masked slot can bring a NaN; page-aligned, for memory registration works
    on pages.

    Returns:
        [num_blocks + 1, layers, 2, kv_heads, block_size, head_dim], contiguous.

    Raises:
        KvMemoryError: fewer than `MIN_BLOCKS`, or the memory is not there.
    """
    if num_blocks < MIN_BLOCKS:
        raise KvMemoryError(f"a KV pool needs at least {MIN_BLOCKS} blocks, not {num_blocks}")
    blocks = num_blocks + SCRATCH_BLOCKS
    size = blocks * block_bytes(config, block_size, dtype)
    try:
        raw = torch.zeros(size + mmap.PAGESIZE, dtype=torch.uint8, device=device)
    except RuntimeError as error:  # torch's allocators raise no narrower type
        raise KvMemoryError(f"cannot allocate {size} bytes for {num_blocks} KV blocks: {error}") from error
    start = -raw.data_ptr() % mmap.PAGESIZE
    return raw[start : start + size].view(dtype).view(_shape(config, blocks, block_size))


class HostPool:
    """Blocks in host memory, to swap to; implements `engine.kv.swap.HostBlocks`.

    Args:
        kv: the pool that blocks come from and return to.
        memory_bytes: what to take; as many whole blocks as fit, perhaps none. Pages that are never used
            cost nothing where the pool itself is in host memory; otherwise all are pinned, for the speed of
            copies.

    Raises:
        KvMemoryError: the memory is not there.
    """

    def __init__(self, kv: torch.Tensor, memory_bytes: int) -> None:
        self._kv = kv
        blocks = memory_bytes // (kv[0].numel() * kv.itemsize)
        try:
            self._memory = torch.empty((blocks, *kv.shape[1:]), dtype=kv.dtype, pin_memory=kv.is_cuda)
        except RuntimeError as error:  # torch's allocators raise no narrower type
            raise KvMemoryError(f"cannot allocate {memory_bytes} bytes to swap to: {error}") from error

    @property
    def total(self) -> int:
        """Blocks that it holds."""
        return len(self._memory)

    def save(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copies blocks of the pool to slots of this memory; done on return."""
        self._memory[list(slots)] = self._kv[list(blocks)].to(self._memory.device)

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copies slots of this memory to blocks of the pool; done, for the pool's next user, on return."""
        self._kv[list(blocks)] = self._memory[list(slots)].to(self._kv.device)
