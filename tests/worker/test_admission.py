from __future__ import annotations

import asyncio

import pytest

from engine.api import EngineRequest, SamplingParams
from worker.admission import Admission, Refusal, RefusedError


def _request(prompt: int = 4, resumed: int = 0, max_tokens: int = 8) -> EngineRequest:
    sampling = SamplingParams(0.0, 1.0, 0, seed=1, choice=0, max_tokens=max_tokens)
    return EngineRequest("r/1", (1,) * prompt, sampling, resumed_token_ids=(2,) * resumed)


def _refusal(
    admission: Admission, key: str, request_id: str, attempt: int, request: EngineRequest
) -> Refusal:
    before = admission.num_inside
    with pytest.raises(RefusedError) as caught:
        admission.admit(key, request_id, attempt, request)
    assert admission.num_inside == before
    return caught.value.refusal


async def test_the_bound_counts_who_is_inside() -> None:
    admission = Admission(max_inside=2, max_context_tokens=10)
    admission.admit("a", "a", 1, _request())
    admission.admit("b", "b", 1, _request())
    assert _refusal(admission, "c", "c", 1, _request()) is Refusal.QUEUE_FULL
    admission.leave("a")
    admission.leave("a")
    admission.leave("never here")
    admission.admit("c", "c", 1, _request())
    assert admission.num_inside == 2


async def test_an_attempt_lower_than_seen_is_stale() -> None:
    admission = Admission(max_inside=9, max_context_tokens=10)
    admission.admit("r/3", "r", 3, _request())
    assert _refusal(admission, "r/2", "r", 2, _request()) is Refusal.STALE_ATTEMPT
    admission.leave("r/3")
    assert _refusal(admission, "r/2", "r", 2, _request()) is Refusal.STALE_ATTEMPT
    admission.admit("r/4", "r", 4, _request())


@pytest.mark.parametrize(
    "request_",
    [
        _request(prompt=0),
        _request(prompt=11),
        _request(prompt=6, resumed=5, max_tokens=20),
        _request(resumed=3, max_tokens=3),
    ],
)
async def test_what_can_never_run_is_invalid(request_: EngineRequest) -> None:
    admission = Admission(max_inside=9, max_context_tokens=10)
    assert _refusal(admission, "r/1", "r", 1, request_) is Refusal.INVALID


async def test_closed_for_all_and_empty_in_the_end() -> None:
    admission = Admission(max_inside=9, max_context_tokens=10)
    assert await admission.wait_empty(0.0) == 0
    admission.admit("r/1", "r", 1, _request())
    admission.close("draining")
    admission.close("stopped")
    with pytest.raises(RefusedError, match="draining"):
        admission.admit("s/1", "s", 1, _request())
    assert await admission.wait_empty(0.01) == 1
    waiting = asyncio.create_task(admission.wait_empty(60.0))
    await asyncio.sleep(0)
    admission.leave("r/1")
    assert await waiting == 0
