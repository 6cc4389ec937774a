from __future__ import annotations

import pytest
import torch

from engine.kv.host_pool import HostPool
from engine.kv.storage import KvMemoryError
from engine.kv.swap import SwapSpace
from tests.support.clock import Clock
from tests.support.swap_memory import ListedHost


def test_blocks_go_out_and_come_back_but_for_those_that_need_not() -> None:
    host = ListedHost(4)
    space = SwapSpace(host, lambda: None, Clock())
    kept = space.save([7, 9, 8], num_tokens=10)
    assert kept is not None
    assert (kept.num_tokens, len(set(kept.slots)), space.used) == (10, 3, 3)
    assert host.saved == [([7, 9, 8], list(kept.slots))]
    space.check_invariants([kept])
    space.load(kept, [1, 2, 3, 4], skip=1)
    assert host.loaded == [(list(kept.slots[1:]), [2, 3])]
    assert (space.used, space.blocks_out_total, space.blocks_in_total) == (0, 3, 2)
    space.check_invariants([])


def test_nothing_is_copied_where_the_cache_holds_all() -> None:
    host = ListedHost(4)
    space = SwapSpace(host, lambda: None, Clock())
    kept = space.save([7, 9], num_tokens=8)
    assert kept is not None
    space.load(kept, [7, 9, 3], skip=3)
    assert (host.loaded, space.used) == ([], 0)


def test_a_context_that_lies_behind_its_window_whole_is_kept_without_a_copy() -> None:
    host = ListedHost(4)
    space = SwapSpace(host, lambda: None, Clock())
    kept = space.save([0, 0], num_tokens=8)
    assert kept is not None
    space.load(kept, [0, 0, 5], skip=0)
    assert (kept.num_tokens, host.saved, host.loaded, space.used) == (8, [], [], 0)


def test_blocks_that_were_let_go_take_no_slot() -> None:
    host = ListedHost(4)
    space = SwapSpace(host, lambda: None, Clock())
    # Pages of two groups, the second with a window.
    kept = space.save([7, 0, 9, 0, 8, 6], num_tokens=10)
    assert kept is not None
    assert space.used == 4
    assert host.saved[0][0] == [7, 9, 8, 6]
    space.check_invariants([kept])
    space.load(kept, [1, 0, 2, 0, 3, 4, 5, 5], skip=2)
    assert [places for _, places in host.loaded] == [[2, 3, 4]]
    assert (space.used, space.blocks_out_total, space.blocks_in_total) == (0, 4, 3)
    space.check_invariants([])


def test_what_does_not_fit_is_not_kept() -> None:
    space = SwapSpace(ListedHost(2), lambda: None, Clock())
    assert space.save([1, 2, 3], num_tokens=9) is None
    kept = space.save([1, 2], num_tokens=8)
    assert kept is not None
    assert space.save([3], num_tokens=1) is None
    space.release(kept)
    assert space.save([3], num_tokens=1) is not None
    assert SwapSpace(ListedHost(0), lambda: None, Clock()).save([], num_tokens=0) is None


@pytest.mark.parametrize(("token_s", "swaps"), [(0.001, False), (0.2, True), (None, True)])
def test_the_cheaper_way_is_taken_once_both_are_known(token_s: float | None, swaps: bool) -> None:
    space = SwapSpace(ListedHost(10), lambda: token_s, Clock(step_s=0.5))
    first = space.save([1, 2], num_tokens=8)
    assert first is not None, "nothing was measured yet"
    # A block takes 0.25 s each way: two of them 1 s, against 8 tokens.
    assert (space.save([3, 4], num_tokens=8) is not None) is swaps


def test_invariants_name_the_fault() -> None:
    space = SwapSpace(ListedHost(4), lambda: None, Clock())
    kept = space.save([1], num_tokens=1)
    assert kept is not None
    with pytest.raises(AssertionError, match="as many swap slots are in use"):
        space.check_invariants([])
    other = space.save([2], num_tokens=1)
    assert other is not None
    with pytest.raises(AssertionError, match="either free or held once"):
        space.check_invariants([kept, kept])


def test_memory_holds_what_was_saved() -> None:
    torch.manual_seed(0)
    kv = torch.randn(6, 2, 2, 1, 4, 3)
    before = kv.clone()
    host = HostPool(kv, memory_bytes=3 * kv[0].numel() * 4 + 5)
    assert host.total == 3
    host.save([5, 2], [0, 2])
    kv.zero_()
    host.load([2, 0], [1, 3])
    assert torch.equal(kv[1], before[2])
    assert torch.equal(kv[3], before[5])
    assert not kv[[0, 2, 4, 5]].any()


def test_no_memory_is_no_block_and_too_much_is_an_error() -> None:
    kv = torch.zeros(2, 1, 2, 1, 4, 1)
    assert HostPool(kv, 0).total == 0
    assert HostPool(kv, kv[0].numel() * 4 - 1).total == 0
    with pytest.raises(KvMemoryError, match=f"cannot allocate {1 << 60} bytes to swap to"):
        HostPool(kv, 1 << 60)
