"""A router's core with fake workers around it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvrelay.v1 import router_pb2
from prefix_index.index import IndexMatch, IndexUnavailableError
from router.config import RouterConfig
from router.core import RouterCore
from router.generation import GenerationEnd, GenerationRequest, ResolvedSampling, TokenDelta, TokenLogprobs
from tests.support.fake_workers import FakeDecodeWorker, FakePrefillWorker, FakeWorker

BLOCK_SIZE = 4
PROMPT = tuple(range(100, 120))
WAIT_S = 30.0


def config(**changes: Any) -> RouterConfig:
    """Settings for tests: small blocks, quick time-outs, always a handover unless said otherwise."""
    values: dict[str, Any] = {
        "router_id": "router-0",
        "served_name": "fake",
        "model_dir": Path(),
        "block_size": BLOCK_SIZE,
        "max_model_len": 1000,
        "heartbeat_timeout_s": 2.0,
        "local_prefill_tokens": 0,
    }
    return RouterConfig(**(values | changes))


def sampling(**changes: Any) -> ResolvedSampling:
    """Greedy, 12 tokens."""
    greedy = ResolvedSampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, choice=0, max_tokens=12)
    return replace(greedy, **changes)


@dataclass(slots=True)
class Collected:
    """What one client saw."""

    tokens: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[tuple[TokenLogprobs, ...]] = field(default_factory=list)
    end: GenerationEnd | None = None


class ScriptedIndex:
    """A prefix index that says what the test says."""

    def __init__(self, leading_blocks: Mapping[str, int] | None = None) -> None:
        self.leading_blocks = dict(leading_blocks or {})
        self.down = False
        self.chains: list[Sequence[bytes]] = []
        self.bookings: dict[tuple[str, str], int] = {}
        self.booked: list[tuple[str, int]] = []

    def _answer(self) -> None:
        if self.down:
            raise IndexUnavailableError("down as told")

    async def match(self, chain: Sequence[bytes]) -> IndexMatch:
        self._answer()
        self.chains.append(chain)
        booked: dict[str, int] = {}
        requests: dict[str, int] = {}
        for (worker_id, _), tokens in self.bookings.items():
            booked[worker_id] = booked.get(worker_id, 0) + tokens
            requests[worker_id] = requests.get(worker_id, 0) + 1
        leading = {worker_id: min(count, len(chain)) for worker_id, count in self.leading_blocks.items()}
        return IndexMatch(leading, booked, requests)

    async def book(self, worker_id: str, request_id: str, prefill_tokens: int, ttl_s: float) -> None:
        self._answer()
        self.bookings[worker_id, request_id] = prefill_tokens
        self.booked.append((worker_id, prefill_tokens))

    async def unbook(self, worker_id: str, request_id: str) -> None:
        self._answer()
        self.bookings.pop((worker_id, request_id), None)

    async def close(self) -> None:
        return


async def eventually(condition: Callable[[], object], what: str = "") -> None:
    """Polls until `condition` holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what or condition}"
        await asyncio.sleep(0.01)


class Harness:
    """Fake workers and a router that knows them. An async context manager."""

    def __init__(
        self,
        prefills: Sequence[FakePrefillWorker] = (),
        decodes: Sequence[FakeDecodeWorker] = (),
        index: ScriptedIndex | None = None,
        **changes: Any,
    ) -> None:
        self.prefills = list(prefills)
        self.decodes = list(decodes)
        self.core = RouterCore(config(**changes), index)
        self._version = 0
        self._names = 0

    @property
    def workers(self) -> list[FakeWorker]:
        return [*self.prefills, *self.decodes]

    async def __aenter__(self) -> Harness:
        for worker in self.workers:
            await worker.start()
        await self.core.start()
        await self.push_table()
        await eventually(lambda: all(link.available for link in self.core.table.links), "workers available")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.core.close()
        for worker in self.workers:
            await worker.stop()

    async def push_table(self) -> None:
        """What the supervisor does after each change."""
        self._version += 1
        workers = [worker.info for worker in self.workers]
        await self.core.table.set_workers(router_pb2.WorkerTable(version=self._version, workers=workers))

    async def supervise(self) -> None:
        """Restarts what died, until cancelled."""
        while True:
            dead = [worker for worker in self.workers if not worker.alive]
            for worker in dead:
                await worker.restart()
            if dead:
                await self.push_table()
            await asyncio.sleep(0.05)

    def metric(self, name: str, **labels: str) -> float:
        """Value of one sample of the router's metrics; 0 where there is none."""
        return self.core.metrics.registry.get_sample_value(f"kvrelay_router_{name}", labels) or 0.0

    def request(self, prompt: Sequence[int] = PROMPT, **changes: Any) -> GenerationRequest:
        """A request of its own name; `changes` are fields of it or of its sampling."""
        self._names += 1
        own = {
            key: changes.pop(key)
            for key in ("deadline", "request_id", "trace", "cache_salt", "priority")
            if key in changes
        }
        values: dict[str, Any] = {"request_id": f"request-{self._names}"} | own
        return GenerationRequest(prompt_token_ids=tuple(prompt), sampling=sampling(**changes), **values)

    async def run(
        self,
        request: GenerationRequest | None = None,
        into: Collected | None = None,
        on_delta: Callable[[], Any] | None = None,
    ) -> Collected:
        """Generates to the end and collects what a client would see."""
        collected = into if into is not None else Collected()
        request = request or self.request()
        async with asyncio.timeout(2 * WAIT_S), self.core.dispatcher.admit(request.deadline) as admission:
            generation = self.core.dispatcher.generate(request, admission)
            try:
                async for event in generation:
                    match event:
                        case TokenDelta():
                            collected.indices += range(event.index, event.index + len(event.token_ids))
                            collected.tokens += event.token_ids
                            collected.logprobs += event.logprobs
                            collected.prompt_logprobs.append(event.prompt_logprobs)
                            if on_delta is not None:
                                on_delta()
                        case GenerationEnd():
                            assert collected.end is None
                            collected.end = event
            finally:
                await generation.aclose()
        return collected

    async def assert_quiet(self) -> None:
        """Nothing runs and no ticket lives on any worker that does."""
        for prefill in self.prefills:
            await eventually(
                lambda worker=prefill: not worker.alive or not worker.live_tickets, "no ticket alive"
            )
        for decode in self.decodes:
            await eventually(lambda worker=decode: not worker.alive or not worker.running, "nothing running")
        assert self.core.dispatcher.running == 0
        assert self.core.dispatcher.queued == 0
