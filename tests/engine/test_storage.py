"""The KV pool's memory."""

from __future__ import annotations

import mmap
from dataclasses import replace

import pytest
import torch

from engine.kv.storage import KvMemoryError, allocate_pool, block_bytes, blocks_in_budget
from tests.contracts.test_attention import CONFIG


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pool_is_one_zeroed_page_aligned_allocation(dtype: torch.dtype) -> None:
    pool = allocate_pool(CONFIG, 9, 4, dtype)
    assert pool.shape == (10, 2, 2, 2, 4, 16)
    assert pool.dtype == dtype
    assert pool.is_contiguous()
    assert pool.data_ptr() % mmap.PAGESIZE == 0
    assert not pool.any()
    # One block is one descriptor: its bytes are exactly the distance to the next.
    assert pool[1].data_ptr() - pool[0].data_ptr() == block_bytes(CONFIG, 4, dtype)


def test_layer_groups_share_a_pool_of_equal_blocks() -> None:
    config = replace(CONFIG, num_layers=6, windows=(8, 8, 0) * 2)
    assert [len(group.layers) for group in config.layer_groups] == [2, 2, 2]
    pool = allocate_pool(config, 9, 4, torch.float32)
    assert pool.shape[1] == 2
    assert pool[0].numel() * 4 == block_bytes(config, 4, torch.float32)
    # Two blocks of each group at least.
    assert blocks_in_budget(700, 100, num_groups=3) == 6
    with pytest.raises(KvMemoryError, match="at least 700 bytes"):
        blocks_in_budget(699, 100, num_groups=3)
    with pytest.raises(KvMemoryError, match="at least 6 blocks, not 5"):
        allocate_pool(config, 5, 4, torch.float32)


def test_block_bytes() -> None:
    config = replace(CONFIG, num_layers=30, windows=(0,) * 30, num_kv_heads=3, head_dim=64)
    assert block_bytes(config, 16, torch.float32) == 30 * 2 * 3 * 16 * 64 * 4
    assert block_bytes(config, 16, torch.bfloat16) == 30 * 2 * 3 * 16 * 64 * 2


def test_budget_holds_the_scratch_block_too() -> None:
    assert blocks_in_budget(1000, 100) == 9
    assert blocks_in_budget(1099, 100) == 9
    size = block_bytes(CONFIG, 4, torch.float32)
    pool = allocate_pool(CONFIG, blocks_in_budget(10 * size, size), 4, torch.float32)
    assert pool.nbytes <= 10 * size


def test_budget_that_is_too_small_says_what_is_needed() -> None:
    assert blocks_in_budget(300, 100) == 2
    with pytest.raises(KvMemoryError, match=r"299 bytes is too small: .* 100 bytes .* 300 bytes are needed"):
        blocks_in_budget(299, 100)
    with pytest.raises(KvMemoryError, match="at least 2 blocks, not 1"):
        allocate_pool(CONFIG, 1, 4, torch.float32)


def test_memory_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KvMemoryError, match="cannot allocate"):
        allocate_pool(CONFIG, 1 << 45, 4, torch.float32)
