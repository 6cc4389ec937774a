"""Log probabilities on their way through the router: one for each token, whatever fails."""

from __future__ import annotations

import pytest

from kvrelay.v1 import decode_pb2
from router.answer import Answer, TokenGapError
from router.generation import Admission, GenerationRequest
from router.wire import token_logprobs, work_request
from tests.router.harness import PROMPT, Collected, Harness, sampling
from tests.support.fake_workers import (
    DecodeScript,
    FakeDecodeWorker,
    FakePrefillWorker,
    answer_logprobs,
    answer_tokens,
)

RIGHT = answer_tokens(PROMPT, 12)
ASKED = {"logprobs": 1, "prompt_logprobs": 1}


def assert_right(seen: Collected) -> None:
    assert seen.tokens == RIGHT
    assert seen.logprobs == [token_logprobs(answer_logprobs(token_id)) for token_id in RIGHT]
    assert seen.end is not None
    assert seen.end.prompt_logprobs == tuple(token_logprobs(answer_logprobs(each)) for each in PROMPT[1:])
    assert seen.prompt_logprobs == [seen.end.prompt_logprobs, *[()] * (len(seen.prompt_logprobs) - 1)]


@pytest.mark.parametrize(
    "fault",
    [
        DecodeScript(),
        DecodeScript(repeat=3, step_tokens=2),
        DecodeScript(after=5, die=True),
        DecodeScript(after=7, step_tokens=3, drop_stream=True),
        DecodeScript(after=0, die=True),
    ],
)
async def test_each_token_has_its_own(fault: DecodeScript) -> None:
    decodes = [
        FakeDecodeWorker(
            f"decode-{n}", script=lambda submit: fault if submit.request.attempt == 1 else DecodeScript()
        )
        for n in range(2)
    ]
    async with Harness([FakePrefillWorker("prefill-0")], decodes) as router:
        assert_right(await router.run(router.request(**ASKED)))
        for decode in decodes:
            for submit in decode.submitted:
                # They came with the first tokens, and cost a whole prefill.
                asks = submit.request.sampling.HasField("prompt_logprobs")
                assert asks == (not submit.request.resumed_token_ids)
                assert submit.request.sampling.HasField("logprobs")
        await router.assert_quiet()


async def test_none_where_nobody_asks() -> None:
    async with Harness([FakePrefillWorker("prefill-0")], [FakeDecodeWorker("decode-0")]) as router:
        seen = await router.run()
        assert seen.logprobs == []
        assert seen.end is not None
        assert seen.end.prompt_logprobs == ()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_missing_ones_are_a_gap(count: int) -> None:
    request = GenerationRequest("r", PROMPT, sampling(logprobs=0))
    answer = Answer(request, Admission(0.0, 0.0))
    event = decode_pb2.TokenEvent(
        request_id="r", attempt=1, token_ids=RIGHT[:2], logprobs=map(answer_logprobs, RIGHT[:count])
    )
    with pytest.raises(TokenGapError, match=f"{count} log probabilities came where 2 were expected"):
        answer.take(event)
    assert answer.tokens == []


def test_prompt_logprobs_are_asked_for_until_the_first_token() -> None:
    request = GenerationRequest("r", PROMPT, sampling(**ASKED))
    assert work_request(request, 1, ()).sampling.prompt_logprobs == 1
    again = work_request(request, 2, (5,)).sampling
    assert not again.HasField("prompt_logprobs")
    assert again.logprobs == 1
