from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest

from kvrelay import (
    AsyncClient,
    Chunk,
    DeadlineExceededError,
    FinishReason,
    Model,
    RequestCancelledError,
    ServerError,
    Tokenization,
    UnavailableError,
)
from tests.client.scripted_server import Request, Response, Server, last, piece, serving, stall

GENEROUS_S = 30.0


async def has_begun(server: Server) -> None:
    assert await asyncio.to_thread(server.begun.acquire, timeout=GENEROUS_S)


async def has_ended(server: Server) -> bool:
    return await asyncio.to_thread(server.ended.acquire, timeout=GENEROUS_S)


async def test_a_whole_answer(async_client: AsyncClient, server: Server) -> None:
    generation = await async_client.generate("p", max_tokens=5)
    assert (generation.text, generation.finish_reason) == ("Hello", FinishReason.STOP)
    assert (await async_client.chat([{"role": "user", "content": "hi"}])).text == "Hello"
    assert isinstance(server.requests[1], Request)
    assert server.requests[1].chat.messages[0].content == "hi"


async def test_piece_by_piece(async_client: AsyncClient) -> None:
    stream = async_client.stream(token_ids=[1])
    chunks = [chunk async for chunk in stream]
    assert [chunk.text for chunk in chunks] == ["Hel", "lo", ""]
    assert chunks[0] == Chunk(0, "Hel", (72, 101, 108), None)
    assert (await stream.result()).text == "Hello"
    assert [chunk async for chunk in stream] == []
    stream.cancel()
    assert (await stream.result()).text == "Hello"


async def test_tokenize_and_models(async_client: AsyncClient) -> None:
    assert await async_client.tokenize("ab") == Tokenization((97, 98), 4096)
    assert await async_client.models() == (Model("demo", 4096, 1),)


async def test_the_key_is_sent_with_every_call(server: Server) -> None:
    async with AsyncClient(server.endpoint, api_key="secret") as client:
        await client.generate("p")
        await client.models()
    assert [metadata["authorization"] for metadata in server.metadata] == ["Bearer secret"] * 2


async def test_a_cut_stream_is_an_error_and_stays_one(async_client: AsyncClient, server: Server) -> None:
    server.script = lambda _request, _context: [piece("a")]
    stream = async_client.stream("p")
    assert (await anext(stream)).text == "a"
    for _ in range(2):
        with pytest.raises(ServerError, match="without its last message"):
            await anext(stream)


async def test_the_deadline_ends_the_request_on_both_sides(async_client: AsyncClient, server: Server) -> None:
    server.script = stall
    with pytest.raises(DeadlineExceededError, match=r"^the timeout passed before the answer was complete$"):
        await async_client.generate("p", timeout=0.2)
    assert await has_ended(server)


@pytest.mark.parametrize("how", ["cancel", "aclose", "with", "dropped"])
async def test_leaving_early_ends_the_request_on_the_server(
    async_client: AsyncClient, server: Server, how: str
) -> None:
    server.script = stall
    stream = async_client.stream("p")
    await anext(stream)
    if how == "cancel":
        stream.cancel()
    elif how == "aclose":
        await stream.aclose()
    elif how == "with":
        async with stream:
            pass
    else:
        del stream
    assert await has_ended(server)
    if how != "dropped":
        with pytest.raises(RequestCancelledError):
            await anext(stream)


@pytest.mark.parametrize("prompt", ["wait", "go"])
async def test_cancelling_the_reading_task(async_client: AsyncClient, server: Server, prompt: str) -> None:
    server.script = stall
    task = asyncio.create_task(async_client.generate(prompt))
    await has_begun(server)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await has_ended(server)


@pytest.mark.parametrize("prompt", ["wait", "go"])
async def test_cancelling_from_another_task_wakes_the_reader(
    async_client: AsyncClient, server: Server, prompt: str
) -> None:
    server.script = stall
    stream = async_client.stream(prompt)
    reader = asyncio.create_task(stream.result())
    await has_begun(server)
    stream.cancel()
    with pytest.raises(RequestCancelledError):
        await reader
    assert not reader.cancelled()
    assert await has_ended(server)


async def test_a_cancelled_task_is_cancelled_even_if_its_stream_was_too(
    async_client: AsyncClient, server: Server
) -> None:
    server.script = stall
    stream = async_client.stream("go")
    reader = asyncio.create_task(stream.result())
    await has_begun(server)
    stream.cancel()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader


async def test_cancelling_ends_the_wait_for_a_router(unused_tcp_port: int) -> None:
    async with AsyncClient(f"127.0.0.1:{unused_tcp_port}", retries=1_000_000) as client:
        stream = client.stream("p")
        asyncio.get_running_loop().call_later(0.3, stream.cancel)
        with pytest.raises(RequestCancelledError):
            await stream.result()


async def test_routers_that_are_away_are_skipped(server: Server, unused_tcp_port: int) -> None:
    async with AsyncClient([f"127.0.0.1:{unused_tcp_port}", server.endpoint], retries=0) as client:
        for _ in range(4):
            assert (await client.generate("p")).text == "Hello"
            assert await client.models()
    async with AsyncClient(f"127.0.0.1:{unused_tcp_port}", retries=1) as client:
        with pytest.raises(UnavailableError):
            await client.generate("p")
        with pytest.raises(UnavailableError):
            await client.models()


async def test_a_router_that_comes_up_late_is_found(unused_tcp_port: int) -> None:
    async with AsyncClient(f"127.0.0.1:{unused_tcp_port}", retries=1_000_000, timeout=GENEROUS_S) as client:
        reader = asyncio.create_task(client.generate("p"))
        await asyncio.sleep(0)
        with serving(Server(), unused_tcp_port):
            assert (await reader).text == "Hello"


async def test_an_unavailable_router_hands_over_before_the_first_token(
    server: Server, other_server: Server
) -> None:
    server.refuse = (grpc.StatusCode.UNAVAILABLE, "no worker")
    async with AsyncClient([server.endpoint, other_server.endpoint]) as client:
        for _ in range(2):
            assert (await client.generate("p")).text == "Hello"
            assert (await client.tokenize("a")).token_ids == (97,)
    assert len(server.requests) >= 1
    assert len(other_server.requests) == 4


async def test_never_again_after_the_first_token(server: Server, other_server: Server) -> None:
    def break_off(_request: Request, context: grpc.ServicerContext) -> Iterator[Response]:
        yield piece("Hel")
        context.abort(grpc.StatusCode.UNAVAILABLE, "worker lost")

    server.script = other_server.script = break_off
    async with AsyncClient([server.endpoint, other_server.endpoint]) as client:
        stream = client.stream("p")
        assert (await anext(stream)).text == "Hel"
        with pytest.raises(UnavailableError, match="worker lost"):
            await anext(stream)
    assert len(server.requests) + len(other_server.requests) == 1


async def test_many_requests_at_once(async_client: AsyncClient, server: Server) -> None:
    server.script = lambda request, _context: [last(request.prompt)]
    answers = await asyncio.gather(*(async_client.generate(str(number)) for number in range(50)))
    assert [answer.text for answer in answers] == [str(number) for number in range(50)]


def test_a_client_made_outside_of_any_loop(server: Server) -> None:
    client = AsyncClient(server.endpoint)

    async def use() -> str:
        async with client:
            return (await client.generate("p")).text

    assert asyncio.run(use()) == "Hello"
