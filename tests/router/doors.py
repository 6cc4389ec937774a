"""Both doors on real ports, in front of a scripted dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
from prometheus_client import CollectorRegistry

from router.auth import ApiKeys
from router.door_metrics import DoorMetrics
from router.http.app import create_app
from router.http.server import HttpServer
from router.model_reading import ModelReading
from router.prompts import ServedModel
from router.rpc.inference import InferenceDoor
from router.rpc.server import RpcServer, inference_server
from router.serving import Serving
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer
from tests.support.scripted_dispatcher import Script, ScriptedDispatcher, says
from tests.support.tiny_tokenizer import CHAT_TEMPLATE, text_folder

MODEL = "org/tiny"
MAX_MODEL_LEN = 512
MAX_BODY_BYTES = 64 << 10
HELLO = Script(says("Hello, wörld"))
WAIT_S = 20.0


def served_model(
    folder: Path, max_model_len: int = MAX_MODEL_LEN, template: str = CHAT_TEMPLATE
) -> ServedModel:
    """The byte tokenizer's model in a fresh folder."""
    text_folder(folder)
    (folder / "chat_template.jinja").write_text(template)
    tokenizer, chat_template = Tokenizer.load(folder), ChatTemplate.load(folder)
    reading = ModelReading(tokenizer, chat_template)
    return ServedModel(MODEL, tokenizer, chat_template, max_model_len, 1_700_000_000, reading)


async def until(condition: Callable[[], object]) -> None:
    """Polls until the condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is watched has no event
            await asyncio.sleep(0.005)


@dataclass
class Doors:
    """Running doors and ways to reach them."""

    dispatcher: ScriptedDispatcher
    serving: Serving
    url: str
    client: httpx.AsyncClient
    rpc: RpcServer
    grpc_address: str
    channel: grpc.aio.Channel


@asynccontextmanager
async def open_doors(
    folder: Path,
    dispatcher: ScriptedDispatcher,
    keys: tuple[str, ...] = (),
    cors_origins: tuple[str, ...] = (),
    template: str = CHAT_TEMPLATE,
    max_model_len: int = MAX_MODEL_LEN,
) -> AsyncIterator[Doors]:
    """Serves until the block ends."""
    metrics = DoorMetrics(CollectorRegistry())
    serving = Serving(served_model(folder, max_model_len, template), dispatcher, metrics.answered)
    app = create_app(serving, metrics, ApiKeys(keys), MAX_BODY_BYTES, lambda: "test", cors_origins)
    http = HttpServer(app, "127.0.0.1", 0)
    door = InferenceDoor(serving, metrics)
    rpc = inference_server("127.0.0.1", 0, door, ApiKeys(keys), MAX_BODY_BYTES)
    await http.start()
    await rpc.start()
    await rpc.set_ready(True)
    url = f"http://127.0.0.1:{http.port}"
    address = f"127.0.0.1:{rpc.port}"
    try:
        async with (
            httpx.AsyncClient(base_url=url, timeout=WAIT_S) as client,
            grpc.aio.insecure_channel(address) as channel,
        ):
            yield Doors(dispatcher, serving, url, client, rpc, address, channel)
    finally:
        await http.stop(0)
        await rpc.stop(0)
