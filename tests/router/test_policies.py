"""What the single policies promise beyond the contract of tests/contracts/test_policy.py."""

from __future__ import annotations

import pytest

from router.policies.base import Placement, PolicySettings, RoutingRequest, WorkerView
from router.policies.registry import create_policy
from tests.contracts.test_policy import TWO_AND_TWO, worker


def cost(
    workers: list[WorkerView],
    held: dict[str, int],
    *,
    num_tokens: int = 1000,
    limit: int = 64,
    forced: bool = False,
    tie_break: int = 0,
) -> Placement:
    policy = create_policy("cost", PolicySettings(local_prefill_tokens=limit, force_remote_prefill=forced))
    return policy.choose(RoutingRequest(num_tokens, 16, tie_break=tie_break), workers, held)


@pytest.mark.parametrize("tie_break", range(10))
def test_a_prefix_goes_where_its_blocks_are(tie_break: int) -> None:
    assert cost(TWO_AND_TWO, {"prefill-1": 800}, tie_break=tie_break).prefill == "prefill-1"


@pytest.mark.parametrize("tie_break", range(10))
def test_a_decode_worker_that_holds_the_prefix_reads_less(tie_break: int) -> None:
    assert cost(TWO_AND_TWO, {"decode-1": 800}, tie_break=tie_break).decode == "decode-1"


def test_little_work_is_done_on_the_decode_worker() -> None:
    assert cost(TWO_AND_TWO, {"decode-1": 936}) == Placement(
        "decode-1", None, "local: 64 of 1000 tokens to compute, limit 64"
    )
    assert cost(TWO_AND_TWO, {"decode-1": 935}).prefill is not None
    assert cost(TWO_AND_TWO, {}, num_tokens=40).prefill is None


def test_even_a_whole_hit_leaves_one_token_to_compute() -> None:
    assert cost(TWO_AND_TWO, {"decode-0": 1000}, limit=0).prefill is not None
    assert cost(TWO_AND_TWO, {"decode-0": 1008}, limit=1).prefill is None


def test_remote_prefill_can_be_forced() -> None:
    placement = cost(TWO_AND_TWO, {"decode-1": 992}, forced=True)
    assert placement.prefill is not None
    assert placement.reason.endswith("forced")


def test_without_prefill_workers_the_decode_worker_does_it_all() -> None:
    placement = cost([worker("decode-0")], {})
    assert placement == Placement(
        "decode-0", None, "local: no prefill worker lives; 1000 of 1000 tokens to compute"
    )


def test_a_decode_worker_with_a_long_prefill_queue_hands_over() -> None:
    workers = [worker("prefill-0"), worker("decode-0", queued_prefill_tokens=5000)]
    placement = cost(workers, {"decode-0": 960})
    assert placement.prefill == "prefill-0"
    assert placement.reason.endswith("prefill queue is longer")


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("tie_break", range(5))
def test_a_full_pool_is_avoided(role: str, tie_break: int) -> None:
    workers = [one for one in TWO_AND_TWO if one.worker_id != f"{role}-0"]
    workers.append(worker(f"{role}-0", blocks_available=10))
    placement = cost(workers, {}, tie_break=tie_break)
    assert getattr(placement, role) == f"{role}-1"
