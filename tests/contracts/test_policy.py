"""What every routing policy must do, for each file in router/policies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.policies.base import NoWorkerError, PolicySettings, RoutingPolicy, RoutingRequest, WorkerView
from router.policies.registry import create_policy, policy_names

BLOCK_SIZE = 16
SETTINGS = PolicySettings(local_prefill_tokens=64, force_remote_prefill=False)
FORCED = replace(SETTINGS, force_remote_prefill=True)


def worker(worker_id: str, **changes: object) -> WorkerView:
    role = worker_id.partition("-")[0]
    view = WorkerView(
        worker_id=worker_id,
        can_prefill=role == "prefill",
        can_decode=role == "decode",
        queued_prefill_tokens=0,
        running=0,
        blocks_available=1000,
        blocks_total=1000,
    )
    return replace(view, **changes)


TWO_AND_TWO = [worker("prefill-0"), worker("prefill-1"), worker("decode-0"), worker("decode-1")]


@pytest.fixture(params=policy_names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def policy(name: str) -> RoutingPolicy:
    return create_policy(name, SETTINGS)


def test_it_knows_its_name(policy: RoutingPolicy, name: str) -> None:
    assert policy.name == name


views = st.builds(
    worker,
    st.sampled_from([f"{role}-{number}" for role in ("prefill", "decode") for number in range(4)]),
    queued_prefill_tokens=st.integers(0, 100_000),
    running=st.integers(0, 500),
    blocks_available=st.integers(0, 1000),
)
requests = st.builds(
    RoutingRequest,
    num_tokens=st.integers(1, 10_000),
    block_size=st.just(BLOCK_SIZE),
    fixed_decode=st.sampled_from([None, "decode-0", "decode-9"]),
    tie_break=st.integers(0, 2**64 - 1),
)
matches = st.dictionaries(
    st.sampled_from(["prefill-0", "prefill-1", "decode-0", "gone-0"]),
    st.integers(0, 700).map(lambda n: n * 16),
)


@pytest.mark.parametrize("settings", [SETTINGS, FORCED])
@pytest.mark.parametrize("each", policy_names())
@given(request_=requests, workers=st.lists(views, unique_by=lambda view: view.worker_id), held=matches)
def test_any_placement_is_one_that_can_be_done(
    each: str,
    settings: PolicySettings,
    request_: RoutingRequest,
    workers: list[WorkerView],
    held: dict[str, int],
) -> None:
    policy = create_policy(each, settings)
    prefills = {view.worker_id for view in workers if view.can_prefill}
    decodes = {view.worker_id for view in workers if view.can_decode}
    if not decodes or (settings.force_remote_prefill and not prefills):
        with pytest.raises(NoWorkerError, match="worker"):
            policy.choose(request_, workers, held)
        return
    placement = policy.choose(request_, workers, held)
    assert placement.decode in decodes
    assert placement.prefill in prefills | {None}
    if settings.force_remote_prefill:
        assert placement.prefill is not None
    if request_.fixed_decode in decodes:
        assert placement.decode == request_.fixed_decode
    assert placement.reason.startswith("local" if placement.prefill is None else "remote")
    assert policy.choose(request_, list(reversed(workers)), dict(held)) == placement, "order must not matter"


def test_equal_workers_share_the_requests(policy: RoutingPolicy) -> None:
    placements = [
        policy.choose(RoutingRequest(500, BLOCK_SIZE, tie_break=number), TWO_AND_TWO, {})
        for number in range(200)
    ]
    for chosen in ([one.prefill for one in placements], [one.decode for one in placements]):
        assert 60 <= max(chosen.count(worker_id) for worker_id in set(chosen)) <= 140
        assert len(set(chosen)) == 2


def test_load_is_avoided(policy: RoutingPolicy) -> None:
    workers = [
        worker("prefill-0", queued_prefill_tokens=4000),
        worker("prefill-1"),
        worker("decode-0"),
        worker("decode-1", running=50),
    ]
    for number in range(20):
        placement = policy.choose(RoutingRequest(500, BLOCK_SIZE, tie_break=number), workers, {})
        assert (placement.prefill, placement.decode) == ("prefill-1", "decode-0")


def test_a_hit_does_not_draw_everything_to_one_worker(policy: RoutingPolicy) -> None:
    """One hot prefix, everything sent at once: load is booked as it comes, and must win in time."""
    queued = {"prefill-0": 0, "prefill-1": 0}
    running = {"decode-0": 0, "decode-1": 0}
    held = {"prefill-0": 960, "decode-0": 960}
    for number in range(200):
        workers = [
            *(worker(name, queued_prefill_tokens=tokens) for name, tokens in queued.items()),
            *(worker(name, running=count) for name, count in running.items()),
        ]
        placement = policy.choose(RoutingRequest(1040, BLOCK_SIZE, tie_break=number), workers, held)
        assert placement.prefill is not None
        queued[placement.prefill] += 1040 - held.get(placement.prefill, 0)
        running[placement.decode] += 1
    assert min(queued.values()) > 0.5 * max(queued.values())
    assert min(running.values()) > 0.5 * max(running.values())


def test_unknown_names_are_an_error_that_lists_the_known() -> None:
    with pytest.raises(ValueError, match="cost, least_loaded"):
        create_policy("fastest", SETTINGS)
