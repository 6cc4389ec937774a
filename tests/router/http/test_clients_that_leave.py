"""Disconnects, slow readers, deadlines, overload and many at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.generation import GenerationRequest
from router.http.protocol import MAX_AHEAD
from tests.router.doors import MODEL, Doors, open_doors, until
from tests.support.scripted_dispatcher import Script, ScriptedDispatcher, says

TEXT = "/v1/completions"
HANG = Script(hang=True)
BODY = {"model": MODEL, "prompt": "hi"}


def raw_request(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def connect(doors: Doors) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = doors.url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("streaming", [False, True])
async def test_leaving_before_the_first_token_cancels(doors: Doors, streaming: bool) -> None:
    doors.dispatcher.script = HANG
    _, writer = await connect(doors)
    writer.write(raw_request({**BODY, "stream": streaming, "n": 2}))
    await until(lambda: doors.dispatcher.states == ["running", "running"])
    await leave(writer)
    await until(lambda: doors.dispatcher.states == ["closed", "closed"])
    assert doors.serving.active == 0
    assert doors.dispatcher.queue.running == 0


async def test_leaving_in_mid_stream_cancels(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("abc", end=None), hang=True)
    reader, writer = await connect(doors)
    writer.write(raw_request({**BODY, "stream": True}))
    await reader.readuntil(b'"text":"c"')
    await leave(writer)
    await until(lambda: doors.dispatcher.states == ["closed"])
    assert doors.serving.active == 0


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
async def test_leaving_with_requests_sent_ahead_cancels(doors: Doors, streaming: bool, at_once: bool) -> None:
    doors.dispatcher.script = HANG
    request = raw_request({**BODY, "stream": streaming})
    _, writer = await connect(doors)
    if at_once:
        writer.write(request * 3)
        await until(lambda: doors.dispatcher.states == ["running"])
    else:
        writer.write(request)
        await until(lambda: doors.dispatcher.states == ["running"])
        writer.write(request * 2)
        await writer.drain()
    await leave(writer)
    await until(lambda: doors.dispatcher.states == ["closed"])
    await until(lambda: doors.serving.active == 0)
    # Those behind it are never begun.
    assert (await doors.client.get("/health")).status_code == 200
    assert doors.dispatcher.states == ["closed"]


async def test_requests_sent_ahead_are_answered_in_order(doors: Doors) -> None:
    doors.dispatcher.script = lambda request: Script(says(bytes(request.prompt_token_ids).decode()))
    reader, writer = await connect(doors)
    prompts = [f"number {number}" for number in range(MAX_AHEAD + 1)]
    writer.write(b"".join(raw_request({**BODY, "prompt": prompt}) for prompt in prompts))
    for prompt in prompts:
        await reader.readuntil(f'"text":"{prompt}"'.encode())
    await leave(writer)


async def test_too_many_requests_sent_ahead_end_the_connection(doors: Doors) -> None:
    doors.dispatcher.script = HANG
    reader, writer = await connect(doors)
    writer.write(raw_request(BODY) * (MAX_AHEAD + 2))
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    await until(lambda: set(doors.dispatcher.states) <= {"closed"} and doors.serving.active == 0)
    writer.close()
    with contextlib.suppress(ConnectionResetError):
        await writer.wait_closed()


async def test_leaving_while_queued_gives_the_place_up(tmp_path: Path) -> None:
    dispatcher = ScriptedDispatcher(HANG, max_running=1, max_queued=1)
    async with open_doors(tmp_path, dispatcher) as doors:
        _, first = await connect(doors)
        first.write(raw_request(BODY))
        await until(lambda: dispatcher.queue.running == 1)
        _, second = await connect(doors)
        second.write(raw_request(BODY))
        await until(lambda: dispatcher.queue.queued == 1)
        await leave(second)
        await until(lambda: dispatcher.queue.queued == 0)
        assert dispatcher.states == ["running"]
        await leave(first)
        await until(lambda: dispatcher.queue.running == 0)


async def test_leaving_while_sending_the_body_harms_nothing(doors: Doors) -> None:
    _, writer = await connect(doors)
    writer.write(raw_request(BODY)[:-3])
    await writer.drain()
    await leave(writer)
    assert (await doors.client.post(TEXT, json=BODY)).status_code == 200
    assert len(doors.dispatcher.generations) == 1


async def test_full_queue(tmp_path: Path) -> None:
    dispatcher = ScriptedDispatcher(HANG, max_running=1, max_queued=0)
    async with open_doors(tmp_path, dispatcher) as doors:
        _, writer = await connect(doors)
        writer.write(raw_request(BODY))
        await until(lambda: dispatcher.queue.running == 1)
        response = await doors.client.post(TEXT, json=BODY)
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "overloaded"
        assert int(response.headers["retry-after"]) >= 1
        await leave(writer)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"timeout": 30}, {}),
        ({}, {"x-request-timeout": "30"}),
        ({"timeout": 3000}, {"x-request-timeout": "30"}),
    ],
)
async def test_deadlines_reach_the_dispatcher(
    doors: Doors, body: dict[str, Any], headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.http.body.time.time", lambda: 1000.0)
    response = await doors.client.post(TEXT, json={**BODY, **body}, headers=headers)
    assert response.status_code == 200
    assert doors.dispatcher.generations[0].request.deadline == 1030.0


async def test_a_deadline_that_passes_in_the_queue(tmp_path: Path) -> None:
    dispatcher = ScriptedDispatcher(HANG, max_running=1, max_queued=1)
    async with open_doors(tmp_path, dispatcher) as doors:
        _, writer = await connect(doors)
        writer.write(raw_request(BODY))
        await until(lambda: dispatcher.queue.running == 1)
        response = await doors.client.post(TEXT, json={**BODY, "timeout": 0.05})
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "deadline_exceeded"
        await leave(writer)


async def test_a_slow_reader_holds_up_nobody_and_loses_nothing(doors: Doors) -> None:
    """One client does not read: its stream waits in its socket, the others' go on."""
    large = Script(((ord("x"),) * 500,), finish_reason="length")
    gate = asyncio.Semaphore(0)

    def script(request: GenerationRequest) -> Script:
        slow = request.prompt_token_ids == (ord("s"),)
        return Script(says("y" * 480, end=None), gate=gate, finish_reason="length") if slow else large

    doors.dispatcher.script = script
    host, _, port = doors.url.removeprefix("http://").rpartition(":")
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    slow.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(slow, (host, int(port)))
    await loop.sock_sendall(slow, raw_request({"model": MODEL, "prompt": "s", "stream": True}))
    await until(lambda: len(doors.dispatcher.generations) == 1)
    for _ in range(480):
        gate.release()
    for _ in range(5):
        response = await doors.client.post(TEXT, json={**BODY, "prompt": "q"})
        assert response.json()["choices"][0]["text"] == "x" * 500
    reader, writer = await asyncio.open_connection(sock=slow, limit=1 << 24)
    data = await reader.readuntil(b"[DONE]")
    assert data.count(b'"text":"y"') == 480
    await leave(writer)


async def test_many_at_once_do_not_mix(doors: Doors) -> None:
    doors.dispatcher.script = lambda request: Script(says(bytes(request.prompt_token_ids).decode(), step=2))
    limits = httpx.Limits(max_connections=60)

    async def one(client: httpx.AsyncClient, number: int) -> None:
        text = f"request {number} " * 8
        body = {"model": MODEL, "prompt": text, "stream": number % 2 == 0}
        response = await client.post(TEXT, json=body)
        if number % 2:
            assert response.json()["choices"][0]["text"] == text
        else:
            lines = [line.removeprefix("data: ") for line in response.text.split("\n\n")[:-2]]
            assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == text

    async with httpx.AsyncClient(base_url=doors.url, limits=limits, timeout=60) as client:
        await asyncio.gather(*(one(client, number) for number in range(60)))
    assert doors.serving.active == 0
    assert set(doors.dispatcher.states) == {"ended"}
