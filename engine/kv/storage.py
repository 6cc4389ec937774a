"""The memory of the KV pool: one allocation per process, never freed while the process lives.

The pool is block-major, [blocks, layers, 2, kv_heads, block_size, head_dim]: one block holds K and V of
all layers of one group (`engine.models.layer_groups`) contiguously, so that one block is one transfer
descriptor. The groups share the pool; where one has fewer layers than another, the last places of its blocks
stay unused. Block 0 is scratch: what is written there is never read.
"""

from __future__ import annotations

import math
import threading

import torch

from engine.host_memory import map_pages, populate
from engine.models.config import ModelConfig
from engine.models.layer_groups import layers_per_block

SCRATCH_BLOCKS = 1
MIN_PAGES = 2
"""Fewer blocks of a group cannot hold one full block and the one that is being filled."""


class KvMemoryError(ValueError):
    """The memory budget cannot hold a usable pool."""


def _shape(config: ModelConfig, blocks: int, block_size: int, draft_layers: int) -> tuple[int, ...]:
    layers = layers_per_block(config.layer_groups) + draft_layers
    return (blocks, layers, 2, config.num_kv_heads, block_size, config.head_dim)


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype, draft_layers: int = 0) -> int:
    """Bytes of one block: K and V of all layers of a group, and a drafter's, for `block_size` tokens."""
    return math.prod(_shape(config, 1, block_size, draft_layers)) * dtype.itemsize


def blocks_in_budget(memory_bytes: int, bytes_per_block: int, num_groups: int = 1) -> int:
    """Usable blocks of a pool that fits `memory_bytes`, scratch included in the memory but not counted.

    Raises:
        KvMemoryError: the budget holds fewer than `MIN_PAGES` blocks of each layer group beside the scratch
            block.
    """
    blocks = memory_bytes // bytes_per_block - SCRATCH_BLOCKS
    if blocks < MIN_PAGES * num_groups:
        needed = (MIN_PAGES * num_groups + SCRATCH_BLOCKS) * bytes_per_block
        raise KvMemoryError(
            f"KV memory of {memory_bytes} bytes is too small: one block takes {bytes_per_block} bytes and "
            f"at least {needed} bytes are needed"
        )
    return blocks


def allocate_pool(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: str = "cpu",
    draft_layers: int = 0,
) -> torch.Tensor:
    """Allocates the zeroed pool for `num_blocks` usable blocks and the scratch block.

    Zeroed, so that no read of a masked slot can bring a NaN; page-aligned, for memory registration works
    on pages. The layers of a drafter, where it keeps its KV in the blocks, lie behind the model's own
    (in blocks of other groups than the first, whose history a drafter keeps, these places stay unused).

    Returns:
        [num_blocks + 1, layers of a group + draft_layers, 2, kv_heads, block_size, head_dim], contiguous.

    Raises:
        KvMemoryError: fewer than `MIN_PAGES` blocks of each layer group, or the memory is not there.
    """
    least = MIN_PAGES * len(config.layer_groups)
    if num_blocks < least:
        raise KvMemoryError(f"a KV pool needs at least {least} blocks, not {num_blocks}")
    blocks = num_blocks + SCRATCH_BLOCKS
    size = blocks * block_bytes(config, block_size, dtype, draft_layers)
    try:
        raw = _pages(size) if device == "cpu" else torch.zeros(size, dtype=torch.uint8, device=device)
    # torch's allocators raise no narrower type; mmap raises one of the others.
    except (RuntimeError, OSError, OverflowError, ValueError) as error:
        raise KvMemoryError(f"cannot allocate {size} bytes for {num_blocks} KV blocks: {error}") from error
    return raw.view(dtype).view(_shape(config, blocks, block_size, draft_layers))


def _pages(size: int) -> torch.Tensor:
    pages = map_pages(size)
    # While the worker goes on starting: a prefill or a transfer would wait for them.
    threading.Thread(target=populate, args=(pages,), name="kv-pages", daemon=True).start()
    return pages
