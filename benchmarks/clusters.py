"""Runs requests through real clusters: every prompt prefilled by one process and decoded by another."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.progress import Progress

from benchmarks.bars import Bars
from engine.api import EngineRequest
from kvrelay import AsyncClient, Generation
from tests.support.live_cluster import LiveCluster, live_cluster

DISAGGREGATED: Mapping[str, object] = {"router": {"force_remote_prefill": True}}


async def ask(client: AsyncClient, request: EngineRequest) -> Generation:
    """Sends one request, token ids in, by the client SDK."""
    sampling = request.sampling
    return await client.generate(
        token_ids=request.prompt_token_ids,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        # Nobody's blocks but its own: each answer needs a transfer.
        cache_salt=request.request_id,
        timeout=600,
    )


def run_disaggregated(
    model_dir: Path, requests: Sequence[EngineRequest], bars: Bars, concurrency: int = 4
) -> dict[str, list[int]]:
    """Token ids of every request from a cluster of one prefill and one decode worker.

    Requires of every answer that NIXL moved its KV, and that the workers were two processes.
    """
    settings = {"model": str(model_dir), **DISAGGREGATED, "debug": {"check_invariants": True}}
    with tempfile.TemporaryDirectory() as folder, live_cluster(Path(folder), settings) as cluster:
        bars.require(cluster.pid("prefill-0") != cluster.pid("decode-0"), "one process had both roles")
        return asyncio.run(_ask_all(cluster, requests, bars, concurrency))


async def _ask_all(
    cluster: LiveCluster, requests: Sequence[EngineRequest], bars: Bars, concurrency: int
) -> dict[str, list[int]]:
    answers: dict[str, list[int]] = {}
    places = asyncio.Semaphore(concurrency)
    with Progress() as progress:
        task = progress.add_task("disaggregated", total=len(requests))
        async with AsyncClient(cluster.state.grpc_address) as client, asyncio.TaskGroup() as group:

            async def run(request: EngineRequest) -> None:
                async with places:
                    generation = await ask(client, request)
                timeline = generation.timeline
                remote = timeline is not None and not timeline.local_prefill
                moved = timeline is not None and timeline.transport == "nixl" and timeline.transfer_bytes > 0
                bars.require(remote and moved, f"disaggregated: {request.request_id}: NIXL moved nothing")
                answers[request.request_id] = list(generation.token_ids)
                progress.advance(task)

            for request in requests:
                group.create_task(run(request))
    return answers
