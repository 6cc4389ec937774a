from __future__ import annotations

import asyncio

from engine.speculation.config import RequestSpeculation
from tests.support.requests import work_request
from tests.support.workers import eventually
from worker.requests import at_deadline, engine_request


def test_every_field_reaches_the_engine() -> None:
    message = work_request(
        "r",
        [1, 2],
        attempt=3,
        max_tokens=9,
        resumed=[4],
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        seed=1 << 63,
        choice=2,
        min_tokens=1,
        stop_token_ids=[8],
        ignore_eos=False,
    )
    message.cache_salt = "salt"
    message.sampling.own_seed = True
    message.speculation.method = "ngram"
    message.speculation.num_speculative_tokens = 2
    request = engine_request(message)
    assert request.speculation == RequestSpeculation("ngram", 2)
    assert request.prompt_token_ids == (1, 2)
    assert request.resumed_token_ids == (4,)
    assert request.cache_salt == "salt"
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.25, 7)
    assert (sampling.seed, sampling.choice) == (1 << 63, 2)
    assert (sampling.max_tokens, sampling.min_tokens) == (9, 1)
    assert sampling.stop_token_ids == {8}
    assert not sampling.ignore_eos
    assert sampling.own_seed
    message.speculation.Clear()
    assert engine_request(message).speculation == RequestSpeculation("", None)
    message.ClearField("speculation")
    assert engine_request(message).speculation is None


def test_no_two_sequences_share_an_id() -> None:
    message = work_request("r", [1])
    assert engine_request(message).request_id != engine_request(message).request_id


async def test_deadlines() -> None:
    passed: list[str] = []
    assert at_deadline(0, lambda: passed.append("never")) is None
    later = at_deadline(
        work_request("r", [1], deadline_s=3600).deadline_unix_ms, lambda: passed.append("later")
    )
    assert later is not None
    at_deadline(1, lambda: passed.append("long ago"))
    at_deadline(work_request("r", [1], deadline_s=0.2).deadline_unix_ms, lambda: passed.append("soon"))
    await asyncio.sleep(0)
    await eventually(lambda: len(passed) == 2)
    assert passed == ["long ago", "soon"]
    later.cancel()
