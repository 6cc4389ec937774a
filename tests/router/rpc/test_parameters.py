"""Parameters, log probabilities and token calls over gRPC."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from kvrelay import AsyncClient, InvalidRequestError, ModelNotFoundError
from kvrelay.v1 import inference_pb2
from kvrelay.v1.inference_pb2_grpc import InferenceStub
from router.generation import Speculation
from tests.router.doors import MAX_MODEL_LEN, MODEL, WAIT_S, Doors
from tests.support.scripted_dispatcher import Script, logprobs_at, says
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE

Request = inference_pb2.GenerateRequest
Sampling = inference_pb2.SamplingOptions
Code = grpc.StatusCode
CHAT = inference_pb2.Chat(messages=[inference_pb2.ChatMessage(role="user", content="hi")])


async def generate(doors: Doors, request: Request) -> list[inference_pb2.GenerateResponse]:
    stub: Any = InferenceStub(doors.channel)  # type: ignore[no-untyped-call]
    return [response async for response in stub.Generate(request, timeout=WAIT_S)]


async def test_every_option_arrives_as_it_does_over_http(doors: Doors) -> None:
    options: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "typical_p": 0.5,
        "presence_penalty": -2.0, "frequency_penalty": 0.5, "repetition_penalty": 1.5,
        "bad_words": ["ab", " c"], "allowed_token_ids": [3, 4], "seed": 5, "max_tokens": 9, "min_tokens": 2,
        "stop": ["x"],
        "stop_token_ids": [5, 6], "include_stop_str_in_output": True, "ignore_eos": True,
        "skip_special_tokens": False, "spaces_between_special_tokens": False, "n": 2, "best_of": 3,
        "echo": True, "logprobs": 2, "prompt_logprobs": 3,
    }  # fmt: skip
    sampling = Sampling(**options, logit_bias={7: -100.0, 9: 0.5})
    assert {field.name for field in Sampling.DESCRIPTOR.fields} == options.keys() | {"logit_bias"}
    body = {"model": MODEL, "prompt": "hi", "logit_bias": {"7": -100, "9": 0.5}, "priority": -3, **options}
    response = await doors.client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    theirs = [generation.request for generation in doors.dispatcher.generations]
    await generate(doors, Request(prompt="hi", sampling=sampling, priority=-3))
    ours = [generation.request for generation in doors.dispatcher.generations[len(theirs) :]]
    assert len(ours) == 3
    for our, their in zip(ours, theirs, strict=True):
        assert our.sampling == their.sampling
        assert (our.prompt_token_ids, our.priority) == (their.prompt_token_ids, their.priority)


async def test_prompt_options_equal_those_of_the_other_door(doors: Doors) -> None:
    for values in (
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"truncate_prompt_tokens": 4},
        {"chat_template_kwargs": {"unused": [1, 2.5, None, {"a": True}]}},
    ):
        options: Any = values
        await generate(doors, Request(chat=CHAT, prompt_options=inference_pb2.PromptOptions(**options)))
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **values}
        await doors.client.post("/v1/chat/completions", json=body)
        ours, theirs = (each.request.prompt_token_ids for each in doors.dispatcher.generations[-2:])
        assert ours == theirs


async def test_speculation_equals_that_of_the_other_door(doors: Doors) -> None:
    for values in ({"method": "suffix", "num_speculative_tokens": 2}, {"method": "eagle3"}, {}):
        options: Any = values
        await generate(doors, Request(prompt="hi", speculation=inference_pb2.SpeculationOptions(**options)))
        body = {"model": MODEL, "prompt": "hi", "speculation": values}
        await doors.client.post("/v1/completions", json=body)
        ours, theirs = (each.request.speculation for each in doors.dispatcher.generations[-2:])
        assert ours == theirs
        assert ours is not None
    async with AsyncClient(doors.grpc_address) as client:
        await client.generate("hi", speculation={"method": "none"})
    assert doors.dispatcher.generations[-1].request.speculation == Speculation("none", None)


@pytest.mark.parametrize(
    ("values", "param", "message"),
    [
        (
            {"method": "medusa"},
            "speculation.method",
            "speculation.method is 'medusa', but must be one of eagle3, ngram, suffix, none here.",
        ),
        ({"method": ""}, "speculation.method", "at least 1 character"),
        ({"num_speculative_tokens": 0}, "speculation.num_speculative_tokens", "greater than or equal to 1"),
        ({"num_speculative_tokens": 64}, "speculation.num_speculative_tokens", "less than or equal to 63"),
    ],
)
async def test_speculation_that_is_refused_at_both_doors(
    doors: Doors, values: Any, param: str, message: str
) -> None:
    body = {"model": MODEL, "prompt": "hi", "speculation": values}
    response = await doors.client.post("/v1/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert message in error["message"]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await generate(doors, Request(prompt="hi", speculation=inference_pb2.SpeculationOptions(**values)))
    assert refused.value.code() is Code.INVALID_ARGUMENT
    assert refused.value.details() == error["message"]
    assert not doors.dispatcher.generations


async def test_any_method_is_taken_while_no_worker_is_known(doors: Doors) -> None:
    doors.dispatcher.draft_methods = ()
    await generate(doors, Request(prompt="hi", speculation=inference_pb2.SpeculationOptions(method="medusa")))
    assert doors.dispatcher.generations[-1].request.speculation == Speculation("medusa", None)


async def test_logprobs(doors: Doors) -> None:
    """One for each token, also of those whose text is held back."""
    doors.dispatcher.script = Script(says("aé", step=2))
    request = Request(prompt="hi", sampling=Sampling(logprobs=1, prompt_logprobs=2))
    responses = await generate(doors, request)
    for response in responses:
        assert [each.token_id for each in response.logprobs] == list(response.token_ids)
    found = [position for response in responses for position in response.logprobs]
    assert [each.token_id for each in found] == [97, 0xC3, 0xA9, IM_END]
    assert [each.token for each in found] == [b"a", b"\xc3", b"\xa9", b"<|im_end|>"]
    assert found[0].logprob == pytest.approx(logprobs_at(97, 1).logprob)
    assert found[0].rank == 3
    assert [(likely.token_id, likely.token, likely.logprob) for likely in found[0].top] == [(98, b"b", -0.25)]
    assert [len(response.prompt_logprobs) for response in responses] == [0] * (len(responses) - 1) + [1]
    (second,) = responses[-1].prompt_logprobs
    assert (second.token_id, second.token, len(second.top)) == (ord("i"), b"i", 2)


async def test_a_long_prompt_has_all_of_them(doors: Doors) -> None:
    token_ids = inference_pb2.TokenIds(ids=[97] * 300)
    sampling = Sampling(prompt_logprobs=1, max_tokens=0)
    (last,) = await generate(doors, Request(token_ids=token_ids, sampling=sampling))
    assert [each.token_id for each in last.prompt_logprobs] == [97] * 299


async def test_what_is_not_asked_is_not_sent(doors: Doors) -> None:
    responses = await generate(doors, Request(prompt="hi"))
    assert not any(response.logprobs or response.prompt_logprobs for response in responses)
    responses = await generate(doors, Request(prompt="hi", sampling=Sampling(best_of=2)))
    assert not any(response.logprobs for response in responses)


async def test_an_echo_has_the_prompts_log_probabilities(doors: Doors) -> None:
    for max_tokens in (0, 5):
        sampling = Sampling(echo=True, logprobs=1, max_tokens=max_tokens)
        responses = await generate(doors, Request(prompt="hi", sampling=sampling))
        [second] = responses[-1].prompt_logprobs
        assert (second.token_id, len(second.top)) == (ord("i"), 1)
    # As many as were asked for themselves.
    sampling = Sampling(echo=True, logprobs=2, prompt_logprobs=0)
    responses = await generate(doors, Request(prompt="hi", sampling=sampling))
    assert [len(position.top) for position in responses[-1].prompt_logprobs] == [0]


async def test_the_sdk_gets_all_of_it(doors: Doors) -> None:
    doors.dispatcher.script = lambda request: Script(says("zb"[request.sampling.choice], end=None))
    async with AsyncClient(doors.grpc_address) as client:
        answer = await client.generate(
            "hi", n=1, best_of=2, echo=True, logprobs=1, prompt_logprobs=0, logit_bias={5: 1.0}, priority=2
        )
        assert answer.text == "hib"
        assert [(each.token, each.rank, each.top[0].token) for each in answer.logprobs] == [(b"b", 3, b"c")]
        assert [each.token for each in answer.prompt_logprobs] == [b"i"]
        assert answer.usage.completion_tokens == 2
        scored = await client.generate(token_ids=[97, 98, 99], max_tokens=0, prompt_logprobs=1)
        assert (scored.text, scored.token_ids, scored.usage.completion_tokens) == ("", (), 0)
        assert [each.token for each in scored.prompt_logprobs] == [b"b", b"c"]
        tokens = await client.tokenize(
            messages=[{"role": "user", "content": "hi"}], add_generation_prompt=False, return_token_strs=True
        )
        assert tokens.token_strs[:2] == ("<|im_start|>", "u")
        assert await client.detokenize(tokens.token_ids) == "<|im_start|>user\nhi<|im_end|>\n"
        assert await client.detokenize(tokens.token_ids, skip_special_tokens=True) == "user\nhi\n"
        assert (await client.model(MODEL)) == (await client.models())[0]
        with pytest.raises(ModelNotFoundError, match="other"):
            await client.model("other")
        with pytest.raises(InvalidRequestError, match="token_ids"):
            await client.detokenize([VOCAB_SIZE])
        with pytest.raises(InvalidRequestError, match="min_p"):
            await client.generate("hi", min_p=2.0)


def _called(**call: str) -> inference_pb2.Chat:
    said = inference_pb2.ChatMessage(role="assistant", tool_calls=[inference_pb2.ToolCall(**call)])
    return inference_pb2.Chat(messages=[said])


@pytest.mark.parametrize(
    ("request_", "says_"),
    [
        (Request(prompt="a", sampling=Sampling(min_p=1.5)), "min_p"),
        (Request(prompt="a", sampling=Sampling(typical_p=0)), "typical_p"),
        (Request(prompt="a", sampling=Sampling(top_k=-2)), "top_k"),
        (Request(prompt="a", sampling=Sampling(repetition_penalty=0)), "repetition_penalty"),
        (Request(prompt="a", sampling=Sampling(presence_penalty=float("inf"))), "presence_penalty"),
        (Request(prompt="a", sampling=Sampling(logit_bias={1: 200})), "logit_bias"),
        (Request(prompt="a", sampling=Sampling(logit_bias={VOCAB_SIZE: 1})), "logit_bias"),
        (Request(prompt="a", sampling=Sampling(allowed_token_ids=[VOCAB_SIZE])), "allowed_token_ids"),
        (Request(prompt="a", sampling=Sampling(bad_words=[""])), "bad_words[0]"),
        (Request(prompt="a", sampling=Sampling(logprobs=21)), "logprobs"),
        (Request(prompt="a", sampling=Sampling(n=2, best_of=1)), "best_of"),
        (Request(prompt="a", sampling=Sampling(max_tokens=0, echo=True)), "max_tokens"),
        (Request(prompt="a", prompt_options={"truncate_prompt_tokens": 0}), "truncate_prompt_tokens"),
        (Request(prompt="a", prompt_options={"continue_final_message": True}), "continue_final_message"),
        (Request(chat=CHAT, prompt_options={"chat_template_kwargs": {"messages": 1}}), "messages"),
        (Request(prompt="a", cache_salt="s" * 257), "cache_salt"),
        (Request(prompt="a", sampling=Sampling(stop=["s" * 1025])), "stop[0]"),
        (Request(prompt="a", include_reasoning=True), "include_reasoning"),
        (Request(prompt="a", structured_outputs={"regex": "a", "strict": True}), "structured_outputs.strict"),
        (Request(prompt="a", structured_outputs={"strict": True}), "structured_outputs.strict"),
        (Request(chat=_called(id="", name="f")), "chat.messages[0].tool_calls[0].id"),
        (Request(chat=_called(id="c", name="")), "chat.messages[0].tool_calls[0].name"),
    ],
)
async def test_bad_values_are_named(doors: Doors, request_: Request, says_: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(doors, request_)
    assert caught.value.code() is Code.INVALID_ARGUMENT
    assert says_ in (caught.value.details() or "")
    assert doors.dispatcher.generations == []


@pytest.mark.parametrize("method", ["Generate", "Tokenize", "Detokenize", "ListModels", "GetModel"])
async def test_what_cannot_be_parsed_is_the_clients_mistake(doors: Doors, method: str) -> None:
    path = f"/kvrelay.v1.Inference/{method}"
    call: Any = doors.channel.unary_stream if method == "Generate" else doors.channel.unary_unary
    answer = call(path, request_serializer=bytes, response_deserializer=bytes)(b"\xff\xff\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (answer.read() if method == "Generate" else answer)
    assert caught.value.code() is Code.INVALID_ARGUMENT
    assert f"{method}Request" in (caught.value.details() or "")


async def test_token_calls(doors: Doors) -> None:
    stub: Any = InferenceStub(doors.channel)  # type: ignore[no-untyped-call]
    options = inference_pb2.PromptOptions(truncate_prompt_tokens=2)
    answer = await stub.Tokenize(
        inference_pb2.TokenizeRequest(prompt="abc", prompt_options=options, return_token_strs=True)
    )
    assert (list(answer.token_ids), list(answer.token_strs)) == ([98, 99], ["b", "c"])
    model = await stub.GetModel(inference_pb2.GetModelRequest(id=MODEL))
    assert (model.id, model.max_model_len) == (MODEL, MAX_MODEL_LEN)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetModel(inference_pb2.GetModelRequest())
    assert caught.value.code() is Code.NOT_FOUND
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Detokenize(inference_pb2.DetokenizeRequest(model="other"))
    assert caught.value.code() is Code.NOT_FOUND
