"""The `openai` package, unchanged, against the door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from router.generation import ErrorKind, GenerationError
from tests.router.doors import MODEL, Doors, open_doors
from tests.support.scripted_dispatcher import Script, ScriptedDispatcher, says

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
KEY = "sk-test"


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Doors]:
    dispatcher = ScriptedDispatcher(Script(says("Hello, wörld"), cached_tokens=3))
    async with open_doors(tmp_path, dispatcher, keys=("other", KEY)) as opened:
        yield opened


@pytest.fixture
async def client(keyed: Doors) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{keyed.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("nothing")
    assert caught.value.code == "model_not_found"


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=50)
    assert answer.choices[0].message.content == "Hello, wörld"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


async def test_chat_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}, n=2
    )
    texts, usage = ["", ""], None
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
        usage = chunk.usage or usage
    assert texts == ["Hello, wörld"] * 2
    assert usage is not None
    assert usage.completion_tokens == 28


async def test_the_stream_helper(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
        async for _ in stream:
            pass
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.content == "Hello, wörld"


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt=[[97], [98, 99]], max_tokens=5)
    assert [choice.text for choice in answer.choices] == ["Hello", "Hello"]
    stream = await client.completions.create(model=MODEL, prompt="a", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello, wörld"


async def test_extra_parameters(keyed: Doors, client: openai.AsyncOpenAI) -> None:
    extra = {"top_k": 5, "ignore_eos": True, "min_tokens": 2, "stop_token_ids": [4], "cache_salt": "s"}
    await client.completions.create(model=MODEL, prompt="a", extra_body=extra)
    sampling = keyed.dispatcher.generations[0].request.sampling
    assert (sampling.top_k, sampling.ignore_eos, sampling.min_tokens) == (5, True, 2)


async def test_errors_have_their_classes(keyed: Doors, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="nothing", messages=MESSAGES)
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()
    keyed.dispatcher.script = Script(error=GenerationError(ErrorKind.OVERLOADED, "full", 1))
    with pytest.raises(openai.RateLimitError):
        await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    keyed.dispatcher.script = Script(error=GenerationError(ErrorKind.INTERNAL, "broken"))
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(model=MODEL, messages=MESSAGES)


@pytest.mark.parametrize(("kind", "tries"), [(ErrorKind.DEADLINE, 1), (ErrorKind.UNAVAILABLE, 2)])
async def test_what_took_too_long_is_not_tried_again(
    keyed: Doors, client: openai.AsyncOpenAI, kind: ErrorKind, tries: int
) -> None:
    """A repeated request would get its whole time once more."""
    keyed.dispatcher.script = Script(error=GenerationError(kind, "as told"))
    with pytest.raises(openai.InternalServerError):
        await client.with_options(max_retries=1).completions.create(model=MODEL, prompt="hi")
    assert len(keyed.dispatcher.generations) == tries


async def test_an_error_inside_a_stream_is_raised(keyed: Doors, client: openai.AsyncOpenAI) -> None:
    keyed.dispatcher.script = Script(
        says("Hel", end=None), error=GenerationError(ErrorKind.UNAVAILABLE, "all workers are lost")
    )
    stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    chunks = aiter(stream)
    text = "".join([(await anext(chunks)).choices[0].delta.content or "" for _ in range(3)])
    assert text == "Hel"
    with pytest.raises(openai.APIError, match="all workers are lost"):
        await anext(chunks)


async def test_the_synchronous_client(keyed: Doors) -> None:
    def use() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=KEY, max_retries=0) as client:
            answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
            stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        return answer.choices[0].message.content, streamed

    assert await asyncio.to_thread(use) == ("Hello, wörld", "Hello, wörld")
