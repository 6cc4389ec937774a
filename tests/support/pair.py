"""A prefill and a decode worker in this process, joined by the in-process transport."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from decode_worker.worker import DecodeWorker
from kv_transfer.transports.in_process import InProcessTransport
from prefill_worker.worker import PrefillWorker
from tests.support.router_client import RouterClient
from tests.support.workers import Pace, WorkerLink, worker_config


class Pair:
    """Both workers, links to them, and a router. `prefill_pace` and `decode_pace` steer their engines."""

    prefill: PrefillWorker
    decode: DecodeWorker
    prefill_link: WorkerLink
    decode_link: WorkerLink
    router: RouterClient

    def __init__(self, model_dir: Path) -> None:
        self.model_dir = model_dir
        self.prefill_pace = Pace()
        self.decode_pace = Pace()

    @property
    def decode_transport(self) -> InProcessTransport:
        """The decode worker's transport, whose `gate` a test may set."""
        transport = self.decode_pace.assembly.transports["in_process"]
        assert isinstance(transport, InProcessTransport)
        return transport

    async def quiet(self) -> None:
        """Both workers hold nothing for anybody, and their engines' invariants hold."""
        await self.prefill_link.quiet()
        await self.decode_link.quiet()


@asynccontextmanager
async def worker_pair(
    model_dir: Path, prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None
) -> AsyncIterator[Pair]:
    """Starts both, and stops what the test did not."""
    pair = Pair(model_dir)
    pair.prefill = PrefillWorker(
        worker_config(model_dir, "prefill-0", **(prefill or {})), pair.prefill_pace.build
    )
    pair.decode = DecodeWorker(worker_config(model_dir, "decode-0", **(decode or {})), pair.decode_pace.build)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pair.prefill.stop)
        pair.prefill_link = WorkerLink(await pair.prefill.start())
        stack.push_async_callback(pair.prefill_link.close)
        stack.push_async_callback(pair.decode.stop)
        pair.decode_link = WorkerLink(await pair.decode.start())
        stack.push_async_callback(pair.decode_link.close)
        pair.router = await stack.enter_async_context(RouterClient(pair.decode_link.info.endpoint))
        yield pair
