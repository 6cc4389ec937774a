"""`python -m router` as a process, with fake workers on the network."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from kvrelay.v1 import inference_pb2, router_pb2
from kvrelay.v1.inference_pb2_grpc import InferenceStub
from kvrelay.v1.router_pb2_grpc import RouterAdminStub
from router.__main__ import BadConfigFileError, load_config
from router.app import ConfigError, Router
from router.text.tokenizer import Tokenizer
from tests.router.harness import eventually
from tests.support.fake_workers import DecodeScript, FakeDecodeWorker, FakePrefillWorker, answer_tokens
from tests.support.tiny_tokenizer import text_folder

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60.0


def write_config(folder: Path, **changes: Any) -> Path:
    values: dict[str, Any] = {
        "router_id": "router-0",
        "served_name": "fake",
        "model_dir": str(text_folder(folder / "model")),
        "block_size": 4,
        "max_model_len": 1000,
        "http_port": 0,
        "grpc_port": 0,
        "local_prefill_tokens": 0,
        "addresses_file": str(folder / "addresses.json"),
    }
    path = folder / "router.json"
    path.write_text(json.dumps(values | changes))
    return path


def start(path: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
    command = [sys.executable, "-m", "router", "--config", str(path)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)


async def output(process: subprocess.Popen[bytes]) -> str:
    """What the process wrote to stderr, once it has ended."""
    _, error = await asyncio.to_thread(process.communicate, timeout=WAIT_S)
    return error.decode()


async def ready_says(http: httpx.AsyncClient, status: int) -> None:
    """Polls /ready; a router that is gone is not ready."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                found = (await http.get("/ready")).status_code
            except httpx.TransportError:
                found = 503
            if found == status:
                return
            await asyncio.sleep(0.02)


@dataclass
class Running:
    """A router process that knows its workers."""

    process: subprocess.Popen[bytes]
    http: httpx.AsyncClient
    channel: grpc.aio.Channel
    decode: FakeDecodeWorker
    prefill: FakePrefillWorker
    folder: Path
    addresses: dict[str, Any]


@asynccontextmanager
async def running(folder: Path, script: DecodeScript, **changes: Any) -> AsyncIterator[Running]:
    prefill = FakePrefillWorker("prefill-0")
    decode = FakeDecodeWorker("decode-0", script=lambda _: script)
    await prefill.start()
    await decode.start()
    process = await asyncio.to_thread(start, write_config(folder, **changes))
    file = folder / "addresses.json"
    try:
        await eventually(lambda: file.exists() or process.poll() is not None, "router listens")
        addresses = json.loads(file.read_text())
        async with (
            grpc.aio.insecure_channel(addresses["admin"]) as admin,
            grpc.aio.insecure_channel(addresses["grpc"]) as channel,
            httpx.AsyncClient(base_url=f"http://{addresses['http']}", timeout=WAIT_S) as http,
        ):
            table = router_pb2.WorkerTable(version=1, workers=[prefill.info, decode.info])
            stub: Any = RouterAdminStub(admin)  # type: ignore[no-untyped-call]
            await stub.SetWorkers(table)
            await ready_says(http, 200)
            yield Running(process, http, channel, decode, prefill, folder, addresses)
    finally:
        process.kill()
        await output(process)
        await prefill.stop()
        await decode.stop()


async def test_both_doors_and_an_orderly_end(tmp_path: Path) -> None:
    async with running(tmp_path, DecodeScript(step_tokens=3)) as router:
        prompt = list(b"a prompt of some tokens")
        expected = answer_tokens(prompt, 12)
        body = {"model": "fake", "prompt": prompt, "max_tokens": 12, "ignore_eos": True}
        answer = (await router.http.post("/v1/completions", json=body)).json()
        assert answer["choices"][0]["text"] == Tokenizer.load(tmp_path / "model").decode(expected)
        assert answer["usage"]["completion_tokens"] == 12
        stub: Any = InferenceStub(router.channel)  # type: ignore[no-untyped-call]
        request = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=prompt),
            sampling=inference_pb2.SamplingOptions(max_tokens=12, ignore_eos=True),
        )
        responses = [response async for response in stub.Generate(request)]
        assert [token for response in responses for token in response.token_ids] == expected
        assert responses[-1].timeline.prefill_worker == "prefill-0"
        assert router.addresses["pid"] == router.process.pid
        await router.http.post("/v1/completions", json={**body, "structured_outputs": {"regex": "(?s:.*)"}})
        metrics = (await router.http.get("/metrics")).text
        assert 'kvrelay_router_answers_total{reason="length"} 3.0' in metrics
        assert 'kvrelay_router_grammar_seconds_count{outcome="compiled"} 1.0' in metrics
        assert "kvrelay_router_calls_total" in metrics
        assert "kvrelay_router_ttft_seconds" in metrics
        router.process.send_signal(signal.SIGTERM)
        logged = await output(router.process)
        assert router.process.returncode == 0, logged
        assert all(json.loads(line)["component"] == "router" for line in logged.splitlines())


async def test_sigterm_lets_running_requests_finish(tmp_path: Path) -> None:
    async with running(tmp_path, DecodeScript(step_s=0.05)) as router:
        prompt = list(b"a prompt")
        body = {"model": "fake", "prompt": prompt, "max_tokens": 40, "stream": True, "ignore_eos": True}
        async with router.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.aiter_lines()
            first = await anext(lines)
            router.process.send_signal(signal.SIGTERM)
            await ready_says(router.http, 503)
            refused = await router.http.post("/v1/completions", json=body)
            assert refused.status_code == 503
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in [first, *rest[:-1]]]
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        expected = answer_tokens(prompt, 40)
        assert text == Tokenizer.load(tmp_path / "model").decode(expected)
        await output(router.process)
        assert router.process.returncode == 0


@pytest.mark.parametrize("signals", [1, 2])
async def test_requests_that_do_not_end_do_not_hold_the_process(tmp_path: Path, signals: int) -> None:
    """The drain has a limit, and a second signal ends it."""
    limit = {1: 0.2, 2: 3600.0}[signals]
    script = DecodeScript(after=3, step_s=3600.0)
    async with running(tmp_path, script, drain_timeout_s=limit) as router:
        body = {"model": "fake", "prompt": [1, 2, 3], "stream": True}
        task = asyncio.create_task(router.http.post("/v1/completions", json=body))
        await eventually(lambda: router.decode.submitted, "request runs")
        for _ in range(signals):
            router.process.send_signal(signal.SIGTERM)
            await ready_says(router.http, 503)
        await output(router.process)
        assert router.process.returncode == 0
        await asyncio.gather(task, return_exceptions=True)


async def test_leaving_ends_the_work_on_the_workers(tmp_path: Path) -> None:
    async with running(tmp_path, DecodeScript(step_s=0.05)) as router:
        body = {"model": "fake", "prompt": [1, 2, 3], "max_tokens": 900, "stream": True, "ignore_eos": True}
        async with router.http.stream("POST", "/v1/completions", json=body) as response:
            await anext(response.aiter_lines())
        await eventually(lambda: router.decode.cancelled, "decode worker hears of it")
        await eventually(lambda: not router.decode.running, "nothing runs")
        await eventually(lambda: not router.prefill.live_tickets, "no ticket lives")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"http_port": 70000}, ["http_port", "65535"]),
        ({"frobnicate": 1}, ["frobnicate", "unknown key", "served_name"]),
        ({"max_running": "many"}, ["max_running", "integer"]),
    ],
)
def test_bad_settings(tmp_path: Path, changes: dict[str, Any], says: list[str]) -> None:
    path = write_config(tmp_path, **changes)
    with pytest.raises(BadConfigFileError) as caught:
        load_config(path)
    for part in [str(path), *says]:
        assert part in str(caught.value)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_bad_files(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "router.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadConfigFileError, match=re.escape(str(path))):
        load_config(path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"policy": "magic"}, ["policy", "magic", "cost"]),
        ({"model_dir": "/nonexistent"}, ["model_dir", "/nonexistent", "does not exist"]),
        ({"api_keys": [""]}, ["api_keys", "empty"]),
        ({"redis_url": "http://x"}, ["redis_url", "redis://"]),
    ],
)
async def test_settings_that_cannot_be_used(tmp_path: Path, changes: dict[str, Any], says: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Router(load_config(write_config(tmp_path, **changes)))
    for part in says:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"log_level": "loud"}, ["log_level", "loud", "warning"]),
        ({"frobnicate": 1}, ["frobnicate"]),
        ({"model_dir": "/nonexistent"}, ["model_dir", "/nonexistent"]),
    ],
)
async def test_a_user_sees_no_traceback(tmp_path: Path, changes: dict[str, Any], says: list[str]) -> None:
    path = write_config(tmp_path, **changes)
    process = start(path)
    text = await output(process)
    assert process.returncode == 2, text
    assert "Traceback" not in text
    for part in [str(path), *says]:
        assert part in text


async def test_the_supervisors_port_is_not_where_clients_are(tmp_path: Path) -> None:
    router = Router(load_config(write_config(tmp_path, host="127.0.0.2")))
    try:
        assert router.addresses.http.startswith("127.0.0.2:")
        assert router.addresses.admin.startswith("127.0.0.1:")
    finally:
        await router.close()


@pytest.mark.parametrize("key", ["http_port", "grpc_port", "admin_port"])
async def test_port_in_use(tmp_path: Path, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(write_config(tmp_path, **{key: port}))
        text = await output(process)
    assert process.returncode == 1
    assert "Traceback" not in text
    assert f"127.0.0.1:{port}" in text
    assert key in text
    assert not (tmp_path / "addresses.json").exists()
