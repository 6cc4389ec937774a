"""Generate, Tokenize and ListModels over a real channel."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvrelay.v1 import common_pb2, inference_pb2
from kvrelay.v1.inference_pb2_grpc import InferenceStub
from router.generation import ErrorKind, GenerationError
from tests.router.doors import MAX_MODEL_LEN, MODEL, WAIT_S, Doors, open_doors, until
from tests.support.scripted_dispatcher import Script, ScriptedDispatcher, says
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE

Request = inference_pb2.GenerateRequest
Sampling = inference_pb2.SamplingOptions
Code = grpc.StatusCode


def stub(doors: Doors) -> Any:
    return InferenceStub(doors.channel)


async def generate(doors: Doors, request: Request, **call: Any) -> list[inference_pb2.GenerateResponse]:
    call.setdefault("timeout", WAIT_S)
    return [response async for response in stub(doors).Generate(request, **call)]


async def refused(doors: Doors, request: Request) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(doors, request)
    return caught.value


async def test_a_prompt(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("Hello, wörld"), cached_tokens=1)
    responses = await generate(doors, Request(model=MODEL, prompt="hi", request_id="r1", cache_salt="s"))
    assert "".join(response.text for response in responses) == "Hello, wörld"
    tokens = [token for response in responses for token in response.token_ids]
    assert tokens == [*"Hello, wörld".encode(), IM_END]
    *pieces, last = responses
    assert all(not piece.finish_reason and not piece.HasField("usage") for piece in pieces)
    assert last.finish_reason == common_pb2.FINISH_REASON_STOP
    assert last.usage == common_pb2.Usage(prompt_tokens=2, completion_tokens=14, cached_tokens=1)
    assert last.timeline.decode_worker == "decode-0"
    assert {response.request_id for response in responses} == {"r1"}
    request = doors.dispatcher.generations[0].request
    assert request.prompt_token_ids == (104, 105)
    assert request.cache_salt == "s"
    assert request.deadline is not None
    assert not request.trace


async def test_a_chat_equals_the_other_door(doors: Doors) -> None:
    chat = inference_pb2.Chat(messages=[inference_pb2.ChatMessage(role="user", content="hi")])
    await generate(doors, Request(chat=chat, trace=True))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    await doors.client.post("/v1/chat/completions", json=body)
    ours, theirs = (generation.request for generation in doors.dispatcher.generations)
    assert ours.prompt_token_ids == theirs.prompt_token_ids
    assert ours.trace
    tokenized = await stub(doors).Tokenize(inference_pb2.TokenizeRequest(chat=chat))
    assert tuple(tokenized.token_ids) == ours.prompt_token_ids
    assert tokenized.max_model_len == MAX_MODEL_LEN


async def test_options_and_defaults(doors: Doors) -> None:
    token_ids = inference_pb2.TokenIds(ids=[7, 8])
    await generate(doors, Request(token_ids=token_ids))
    sampling = doors.dispatcher.generations[-1].request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert sampling.max_tokens == MAX_MODEL_LEN - 2
    options = Sampling(
        temperature=0, top_p=0.5, top_k=3, seed=2**64 - 1, max_tokens=4, min_tokens=1, stop_token_ids=[9],
        ignore_eos=True,
    )  # fmt: skip
    responses = await generate(doors, Request(token_ids=token_ids, sampling=options))
    sampling = doors.dispatcher.generations[-1].request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 0.5, 3)
    assert (sampling.seed, sampling.max_tokens, sampling.min_tokens) == (2**64 - 1, 4, 1)
    assert (sampling.stop_token_ids, sampling.ignore_eos) == ((9,), True)
    assert responses[-1].finish_reason == common_pb2.FINISH_REASON_LENGTH


async def test_choices(doors: Doors) -> None:
    doors.dispatcher.script = lambda request: Script(says(f"choice {request.sampling.choice}"))
    responses = await generate(doors, Request(prompt="a", sampling=Sampling(n=3)))
    texts = ["", "", ""]
    for response in responses:
        texts[response.choice] += response.text
    assert texts == ["choice 0", "choice 1", "choice 2"]
    assert [response.HasField("usage") for response in responses] == [False] * (len(responses) - 1) + [True]
    assert sorted(response.choice for response in responses if response.finish_reason) == [0, 1, 2]
    assert responses[-1].usage.prompt_tokens == 1
    assert responses[-1].usage.completion_tokens == 27


async def test_stop_strings_end_the_generation(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("one two", step=4), hang=True)
    responses = await generate(doors, Request(prompt="a", sampling=Sampling(stop=[" t"])))
    assert "".join(response.text for response in responses) == "one"
    assert sum(len(response.token_ids) for response in responses) == 5
    assert responses[-1].usage.completion_tokens == 5
    assert doors.dispatcher.states == ["finished"]


CONTEXT = f"this model's context length is {MAX_MODEL_LEN} tokens"
CHAT_WITHOUT_ROLE = inference_pb2.Chat(messages=[inference_pb2.ChatMessage(content="hi")])


@pytest.mark.parametrize(
    ("request_", "code", "says_"),
    [
        (Request(), Code.INVALID_ARGUMENT, "prompt, chat, token_ids"),
        (Request(prompt=""), Code.INVALID_ARGUMENT, "empty"),
        (Request(chat=inference_pb2.Chat()), Code.INVALID_ARGUMENT, "chat.messages"),
        (Request(chat=CHAT_WITHOUT_ROLE), Code.INVALID_ARGUMENT, "chat.messages[0].role"),
        (Request(token_ids=inference_pb2.TokenIds()), Code.INVALID_ARGUMENT, "token_ids"),
        (Request(token_ids=inference_pb2.TokenIds(ids=[VOCAB_SIZE])), Code.INVALID_ARGUMENT, "out of range"),
        (
            Request(prompt="a" * 600),
            Code.INVALID_ARGUMENT,
            f"600 tokens; this model's context length is {MAX_MODEL_LEN}",
        ),
        (Request(prompt="a", sampling=Sampling(temperature=-1)), Code.INVALID_ARGUMENT, "temperature"),
        (
            Request(prompt="a", sampling=Sampling(temperature=float("nan"))),
            Code.INVALID_ARGUMENT,
            "temperature",
        ),
        (Request(prompt="a", sampling=Sampling(top_p=0)), Code.INVALID_ARGUMENT, "top_p"),
        (Request(prompt="a", sampling=Sampling(max_tokens=0)), Code.INVALID_ARGUMENT, "max_tokens"),
        (Request(prompt="a", sampling=Sampling(max_tokens=9999)), Code.INVALID_ARGUMENT, "max_tokens"),
        (Request(prompt="a", sampling=Sampling(n=0)), Code.INVALID_ARGUMENT, "'n'"),
        (Request(prompt="a", sampling=Sampling(stop=[""])), Code.INVALID_ARGUMENT, "stop[0]"),
        (Request(prompt="a", request_id="a b"), Code.INVALID_ARGUMENT, "request_id"),
        (Request(prompt="a", model="other"), Code.NOT_FOUND, "other"),
    ],
)
async def test_bad_input(doors: Doors, request_: Request, code: grpc.StatusCode, says_: str) -> None:
    error = await refused(doors, request_)
    assert error.code() is code
    assert says_ in (error.details() or "")
    assert doors.dispatcher.generations == []


@pytest.mark.parametrize("character", ["a", "%", "\n", "é", "\U0001f600"])
async def test_a_mistake_is_told_however_long_the_clients_words_are(doors: Doors, character: str) -> None:
    """gRPC clients refuse long headers: often, not always, so it is tried more than once."""
    for _ in range(5):
        error = await refused(doors, Request(prompt="a", model=character * 10_000))
        assert error.code() is Code.NOT_FOUND
        assert (error.details() or "").endswith(f"this server has {MODEL!r}.")


async def test_a_message_that_is_too_large(doors: Doors) -> None:
    assert (await refused(doors, Request(prompt="a" * (1 << 20)))).code() is Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ErrorKind.OVERLOADED, Code.RESOURCE_EXHAUSTED),
        (ErrorKind.UNAVAILABLE, Code.UNAVAILABLE),
        (ErrorKind.DEADLINE, Code.DEADLINE_EXCEEDED),
        (ErrorKind.INVALID, Code.INVALID_ARGUMENT),
        (ErrorKind.INTERNAL, Code.INTERNAL),
        (ErrorKind.CANCELLED, Code.UNAVAILABLE),
    ],
)
async def test_failures(doors: Doors, kind: ErrorKind, code: grpc.StatusCode) -> None:
    doors.dispatcher.script = Script(says("a", end=None), error=GenerationError(kind, "the reason", 2.5))
    error = await refused(doors, Request(prompt="a"))
    assert error.code() is code
    assert error.details() == "the reason"
    assert ("retry-after", "3") in tuple(error.trailing_metadata())


async def test_an_unforeseen_error_tells_no_secrets(doors: Doors) -> None:
    doors.dispatcher.script = Script(error=RuntimeError("secret"))
    error = await refused(doors, Request(prompt="a"))
    assert error.code() is Code.INTERNAL
    assert "secret" not in (error.details() or "")


@pytest.mark.parametrize("after", ["", "abc"])
async def test_cancelling_ends_the_request(doors: Doors, after: str) -> None:
    doors.dispatcher.script = Script(says(after, end=None), hang=True)
    call = stub(doors).Generate(Request(prompt="a", sampling=Sampling(n=2)))
    await until(lambda: doors.dispatcher.states == ["running", "running"])
    for _ in range(2 * len(after)):
        await call.read()
    call.cancel()
    await until(lambda: doors.dispatcher.states == ["closed", "closed"])
    assert doors.serving.active == 0


async def test_a_deadline_ends_the_request(doors: Doors) -> None:
    doors.dispatcher.script = Script(hang=True)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(doors, Request(prompt="a"), timeout=0.2)
    assert caught.value.code() is Code.DEADLINE_EXCEEDED
    await until(lambda: doors.dispatcher.states == ["closed"])


async def test_a_client_that_vanishes_ends_its_request(doors: Doors) -> None:
    doors.dispatcher.script = Script(hang=True)
    channel = grpc.aio.insecure_channel(doors.grpc_address)
    generate_ = InferenceStub(channel).Generate  # type: ignore[no-untyped-call]
    call = generate_(Request(prompt="a"))
    await until(lambda: doors.dispatcher.states == ["running"])
    await channel.close()
    await until(lambda: doors.dispatcher.states == ["closed"])
    assert call.done()


async def test_no_deadline_is_none(doors: Doors) -> None:
    await generate(doors, Request(prompt="a"), timeout=None)
    assert doors.dispatcher.generations[0].request.deadline is None


async def test_many_at_once_do_not_mix(doors: Doors) -> None:
    doors.dispatcher.script = lambda request: Script(says(bytes(request.prompt_token_ids).decode()))

    async def one(number: int) -> None:
        responses = await generate(doors, Request(prompt=f"request {number}"))
        assert "".join(response.text for response in responses) == f"request {number}"

    await asyncio.gather(*(one(number) for number in range(50)))
    assert doors.serving.active == 0


async def test_tokenize(doors: Doors) -> None:
    answer = await stub(doors).Tokenize(inference_pb2.TokenizeRequest(model=MODEL, prompt="a" * 600))
    assert list(answer.token_ids) == [97] * 600
    for request, code in (
        (inference_pb2.TokenizeRequest(), Code.INVALID_ARGUMENT),
        (inference_pb2.TokenizeRequest(prompt="a", model="other"), Code.NOT_FOUND),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(doors).Tokenize(request)
        assert caught.value.code() is code


async def test_list_models(doors: Doors) -> None:
    (model,) = (await stub(doors).ListModels(inference_pb2.ListModelsRequest())).models
    assert (model.id, model.max_model_len, model.created_unix_s) == (MODEL, MAX_MODEL_LEN, 1_700_000_000)


async def test_while_draining_new_requests_are_sent_away(doors: Doors) -> None:
    doors.serving.draining = True
    assert (await refused(doors, Request(prompt="a"))).code() is Code.UNAVAILABLE


async def test_full_queue(tmp_path: Path) -> None:
    dispatcher = ScriptedDispatcher(Script(hang=True), max_running=1, max_queued=0)
    async with open_doors(tmp_path, dispatcher) as doors:
        call = stub(doors).Generate(Request(prompt="a"))
        await until(lambda: dispatcher.queue.running == 1)
        error = await refused(doors, Request(prompt="a"))
        assert error.code() is Code.RESOURCE_EXHAUSTED
        assert "retry-after" in dict(tuple(error.trailing_metadata()))
        call.cancel()


async def test_calls_are_counted(doors: Doors) -> None:
    await generate(doors, Request(prompt="a"))
    await refused(doors, Request())
    text = (await doors.client.get("/metrics")).text
    assert 'kvrelay_router_calls_total{call="Generate",door="grpc",status="OK"} 1.0' in text
    assert 'kvrelay_router_calls_total{call="Generate",door="grpc",status="INVALID_ARGUMENT"} 1.0' in text
