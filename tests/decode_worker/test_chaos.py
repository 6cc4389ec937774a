"""Many requests at once with everything going wrong: nobody gets a wrong token and nothing is lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from kv_transfer.transports.base import PullState
from kv_transfer.transports.in_process import InProcessPull
from kvrelay.v1 import common_pb2, prefill_pb2
from tests.support.aggregated import aggregated_tokens
from tests.support.pair import Pair, worker_pair
from tests.support.requests import prompt, work_request

MAX_ATTEMPTS = 30


class Unruly:
    """Holds reads for a while, and fails some."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.calm = False

    def __call__(self, _: InProcessPull) -> PullState:
        draw = 1.0 if self.calm else self._random.random()
        if draw < 0.05:
            return PullState.FAILED
        return PullState.PENDING if draw < 0.5 else PullState.DONE


async def _run(pair: Pair, index: int, chance: random.Random) -> list[int] | None:
    """One request as a router runs it: again until it has an answer, or cancelled."""
    # Prompts share beginnings, so that prefix hits take part.
    tokens = prompt(40 + 16 * (index % 5), seed=index % 3) + prompt(index, seed=index)
    give_up = chance.random() < 0.25
    ticket: prefill_pb2.KvTicket | None = None
    for attempt in range(1, MAX_ATTEMPTS):
        request = work_request(f"r{index}", tokens, attempt=attempt, max_tokens=20)
        if ticket is None and chance.random() < 0.8:
            ticket = (await pair.prefill_link.prefill.Start(prefill_pb2.StartRequest(request=request))).ticket
        reply = pair.router.submit(request, ticket)
        if give_up:
            await asyncio.sleep(chance.random() * 0.2)
            pair.router.cancel(request.request_id, attempt)
        end = await pair.router.end_of(reply)
        if end.finish_reason != common_pb2.FINISH_REASON_ERROR:
            if end.finish_reason == common_pb2.FINISH_REASON_CANCELLED:
                return None
            assert reply.tokens == aggregated_tokens(pair.model_dir, request)
            return reply.tokens
        ticket = ticket if end.error.ticket_alive else None
    raise AssertionError(f"r{index} got no answer")


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_wrong_and_nothing_lost(model_dir: Path, seed: int) -> None:
    decode = {"num_blocks": 40, "max_model_len": 256, "session_grace_s": 30.0}
    async with worker_pair(model_dir, {"num_blocks": 40, "max_model_len": 256}, decode) as pair:
        gate = Unruly(seed)
        pair.decode_transport.gate = gate
        running = asyncio.gather(
            *(_run(pair, index, random.Random(seed * 100 + index)) for index in range(24))
        )

        async def breaks() -> None:
            while True:
                await asyncio.sleep(0.3)
                await pair.router.reconnect()

        breaking = asyncio.create_task(breaks())
        answers = await running
        breaking.cancel()
        await asyncio.wait({breaking})
        assert sum(answer is not None for answer in answers) > 8
        gate.calm = True
        await pair.quiet()
