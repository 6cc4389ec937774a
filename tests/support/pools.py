"""Small KV pools whose every byte says where it belongs."""

from __future__ import annotations

import torch

from kv_transfer.types import PoolRegion

NUM_BLOCKS = 64
BLOCK_BYTES = 4096


def pattern(block: int, block_bytes: int = BLOCK_BYTES) -> torch.Tensor:
    """Bytes of a peer's block, uint8 [block_bytes]: no two blocks alike, no byte 0."""
    offsets = torch.arange(block_bytes)
    return ((offsets * 31 + block * 17) % 255 + 1).to(torch.uint8)


def filled_pool(num_blocks: int = NUM_BLOCKS, block_bytes: int = BLOCK_BYTES) -> torch.Tensor:
    """Pool of a peer, uint8 [num_blocks, block_bytes]."""
    return torch.stack([pattern(block, block_bytes) for block in range(num_blocks)])


def empty_pool(num_blocks: int = NUM_BLOCKS, block_bytes: int = BLOCK_BYTES) -> torch.Tensor:
    """Pool of a reader, all zero, uint8 [num_blocks, block_bytes]."""
    return torch.zeros(num_blocks, block_bytes, dtype=torch.uint8)


def region_of(pool: torch.Tensor) -> PoolRegion:
    """The region to register."""
    return PoolRegion(pool.data_ptr(), pool.shape[0], pool[0].numel() * pool.element_size(), pool)
