from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest

from kvrelay import (
    Chunk,
    Client,
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


def test_a_whole_answer(client: Client, server: Server) -> None:
    generation = client.generate("p", max_tokens=5, temperature=0)
    assert generation.text == "Hello"
    assert bytes(generation.token_ids) == b"Hello"
    assert generation.finish_reason is FinishReason.STOP
    request = server.requests[0]
    assert isinstance(request, Request)
    assert (request.prompt, request.sampling.max_tokens) == ("p", 5)


def test_a_chat(client: Client, server: Server) -> None:
    assert client.chat([{"role": "user", "content": "hi"}], n=1).text == "Hello"
    request = server.requests[0]
    assert isinstance(request, Request)
    assert request.chat.messages[0].content == "hi"


def test_piece_by_piece(client: Client) -> None:
    stream = client.stream(token_ids=[1, 2])
    chunks = list(stream)
    assert [chunk.text for chunk in chunks] == ["Hel", "lo", ""]
    assert chunks[0] == Chunk(0, "Hel", (72, 101, 108), None)
    assert chunks[-1].finish_reason is FinishReason.STOP
    assert stream.result().text == "Hello"
    assert list(stream) == []
    stream.cancel()  # too late, and no error
    assert stream.result().text == "Hello"


def test_the_rest_can_be_read_at_once(client: Client) -> None:
    stream = client.stream("p")
    assert next(stream).text == "Hel"
    assert stream.result().text == "Hello"


def test_tokenize_and_models(client: Client) -> None:
    assert client.tokenize("ab", model="demo") == Tokenization((97, 98), 4096)
    assert client.tokenize(messages=[{"role": "user", "content": "c"}]).token_ids == (99,)
    assert client.models() == (Model("demo", 4096, 1),)


def test_the_key_is_sent_with_every_call(server: Server) -> None:
    with Client(server.endpoint, api_key="secret") as client:
        client.generate("p")
        client.models()
        client.tokenize("p")
    assert [metadata["authorization"] for metadata in server.metadata] == ["Bearer secret"] * 3


def test_no_key_no_header(client: Client, server: Server) -> None:
    client.models()
    assert "authorization" not in server.metadata[0]


def test_a_cut_stream_is_an_error_and_stays_one(client: Client, server: Server) -> None:
    server.script = lambda _request, _context: [piece("a")]
    stream = client.stream("p")
    assert next(stream).text == "a"
    for _ in range(2):
        with pytest.raises(ServerError, match="without its last message"):
            next(stream)
    with pytest.raises(ServerError):
        stream.result()


def test_the_deadline_ends_the_request_on_both_sides(client: Client, server: Server) -> None:
    server.script = stall
    with pytest.raises(DeadlineExceededError, match=r"^the timeout passed before the answer was complete$"):
        client.generate("p", timeout=0.2)
    assert server.ended.acquire(timeout=GENEROUS_S)


def test_the_clients_own_timeout_is_the_default(server: Server) -> None:
    server.script = stall
    with Client(server.endpoint, timeout=0.2) as client, pytest.raises(DeadlineExceededError):
        client.generate("wait")


@pytest.mark.parametrize("how", ["cancel", "close", "with", "dropped"])
def test_leaving_early_ends_the_request_on_the_server(client: Client, server: Server, how: str) -> None:
    server.script = stall
    stream = client.stream("p")
    next(stream)
    if how == "cancel":
        stream.cancel()
    elif how == "close":
        stream.close()
    elif how == "with":
        with stream:
            pass
    else:
        del stream
    assert server.ended.acquire(timeout=GENEROUS_S)
    if how != "dropped":
        with pytest.raises(RequestCancelledError):
            next(stream)


@pytest.mark.parametrize("prompt", ["wait", "go"])
def test_cancelling_from_another_thread_wakes_the_reader(client: Client, server: Server, prompt: str) -> None:
    server.script = stall
    stream = client.stream(prompt)
    raised: list[BaseException] = []

    def read() -> None:
        try:
            stream.result()
        except RequestCancelledError as error:
            raised.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert server.begun.acquire(timeout=GENEROUS_S)
    stream.cancel()
    reader.join(GENEROUS_S)
    assert len(raised) == 1
    assert server.ended.acquire(timeout=GENEROUS_S)


def test_cancelling_ends_the_wait_for_a_router(unused_tcp_port: int) -> None:
    with Client(f"127.0.0.1:{unused_tcp_port}", retries=1_000_000) as client:
        stream = client.stream("p")
        threading.Timer(0.3, stream.cancel).start()
        with pytest.raises(RequestCancelledError):
            stream.result()


def test_a_router_that_is_not_there_is_skipped(server: Server, unused_tcp_port: int) -> None:
    with Client([f"127.0.0.1:{unused_tcp_port}", server.endpoint], retries=0) as client:
        for _ in range(4):
            assert client.generate("p").text == "Hello"
            assert client.models()


def test_nobody_is_there(unused_tcp_port: int) -> None:
    with Client(f"127.0.0.1:{unused_tcp_port}", retries=1) as client:
        with pytest.raises(UnavailableError):
            client.generate("p")
        with pytest.raises(UnavailableError):
            client.models()


def test_a_router_that_comes_up_late_is_found(unused_tcp_port: int) -> None:
    with Client(f"127.0.0.1:{unused_tcp_port}", retries=1_000_000, timeout=GENEROUS_S) as client:
        stream = client.stream("p")  # refused by now, or soon
        with serving(Server(), unused_tcp_port):
            assert stream.result().text == "Hello"


def test_an_unavailable_router_hands_over_before_the_first_token(
    server: Server, other_server: Server
) -> None:
    server.refuse = (grpc.StatusCode.UNAVAILABLE, "no worker")
    with Client([server.endpoint, other_server.endpoint]) as client:
        for _ in range(2):
            assert client.generate("p").text == "Hello"
            assert client.tokenize("a").token_ids == (97,)
    assert len(server.requests) >= 1
    assert len(other_server.requests) == 4


def test_never_again_after_the_first_token(server: Server, other_server: Server) -> None:
    def break_off(_request: Request, context: grpc.ServicerContext) -> Iterator[Response]:
        yield piece("Hel")
        context.abort(grpc.StatusCode.UNAVAILABLE, "worker lost")

    server.script = other_server.script = break_off
    with Client([server.endpoint, other_server.endpoint]) as client:
        stream = client.stream("p")
        assert next(stream).text == "Hel"
        with pytest.raises(UnavailableError, match="worker lost"):
            next(stream)
    assert len(server.requests) + len(other_server.requests) == 1


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL])
def test_other_failures_are_not_tried_again(
    server: Server, other_server: Server, code: grpc.StatusCode
) -> None:
    server.refuse = other_server.refuse = (code, "no")
    with Client([server.endpoint, other_server.endpoint]) as client, pytest.raises(Exception, match="no"):
        client.generate("p")
    assert len(server.requests) + len(other_server.requests) == 1


def test_many_threads_share_a_client(client: Client, server: Server) -> None:
    server.script = lambda request, _context: [last(request.prompt)]
    texts: dict[int, str] = {}

    def ask(number: int) -> None:
        texts[number] = client.generate(str(number)).text

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {number: str(number) for number in range(16)}
