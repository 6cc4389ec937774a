from __future__ import annotations

import os
from pathlib import Path

import pytest

from decode_worker import gathering
from decode_worker.gathering import LONGEST_WAIT_S, MOST_PASSES, SPREAD, Gathering, share_cores
from engine.api import Engine, StepOutput
from kv_transfer.types import KvTicket
from kvrelay.v1 import worker_pb2
from tests.engine.digest_model import make_engine, request
from tests.support.aggregated import aggregated_tokens
from tests.support.clock import Clock
from tests.support.pair import Pair, worker_pair
from tests.support.requests import prompt, work_request
from tests.support.router_client import Reply
from tests.support.workers import eventually


class Bench:
    """A gathering beside an engine that adopts."""

    def __init__(self) -> None:
        self.clock = Clock(100.0)
        self.engine: Engine = make_engine()
        self.gathering = Gathering(self.clock)

    def adopt(self, name: str) -> None:
        """Takes a sequence over and sends its first token."""
        self.engine.reserve(request(name, [1, 2, 3]))
        self.engine.adopt(name, 4)
        self.gathering.adopted(name, self.engine)
        assert self.wait_s() == 0
        assert self.step().batch_size == 0

    def step(self) -> StepOutput:
        output = self.engine.step()
        self.gathering.stepped(output)
        return output

    def wait_s(self) -> float:
        return self.gathering.wait_s(self.engine)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_passes_are_spread_while_a_handover_is_under_way(bench: Bench) -> None:
    for name in "ab":
        bench.gathering.expect(name)
    bench.adopt("a")
    assert bench.wait_s() == 0
    output = bench.step()
    assert output.batch_size == 1
    assert bench.wait_s() == pytest.approx(min(SPREAD * output.duration_s, LONGEST_WAIT_S))
    bench.clock.now_s += LONGEST_WAIT_S
    assert bench.wait_s() == 0
    bench.step()
    assert bench.wait_s() > 0
    bench.adopt("b")
    assert bench.wait_s() == 0


def test_a_batch_is_gathered_once(bench: Bench) -> None:
    bench.gathering.expect("a")
    bench.adopt("a")
    assert bench.wait_s() == 0
    bench.gathering.expect("b")
    bench.step()
    assert bench.wait_s() == 0
    bench.engine.cancel("a")
    bench.adopt("b")
    bench.gathering.expect("c")
    bench.step()
    assert bench.wait_s() > 0


def test_only_so_many_passes_are_spread(bench: Bench) -> None:
    for name in "ab":
        bench.gathering.expect(name)
    bench.adopt("a")
    for _ in range(MOST_PASSES):
        bench.clock.now_s += LONGEST_WAIT_S
        assert bench.wait_s() == 0
        bench.step()
    assert bench.wait_s() == 0


def test_a_handover_that_failed_is_not_waited_for(bench: Bench) -> None:
    for name in "ab":
        bench.gathering.expect(name)
    bench.adopt("a")
    bench.step()
    assert bench.wait_s() > 0
    bench.gathering.forget("b")
    assert bench.wait_s() == 0


def test_prompts_of_its_own_are_not_held_back(bench: Bench) -> None:
    for name in "ab":
        bench.gathering.expect(name)
    bench.adopt("a")
    bench.step()
    assert bench.wait_s() > 0
    bench.engine.submit(request("local", [5, 6, 7]))
    assert bench.wait_s() == 0


def test_who_shares_cores() -> None:
    assert share_cores("127.0.0.1:1", "127.0.0.1:2", os.getpid())
    assert not share_cores("10.0.0.1:1", "10.0.0.2:1", os.getpid())
    assert not share_cores("127.0.0.1:1", "127.0.0.1:2", 2**22 + 1)


@pytest.fixture
def endless_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second pass comes only where nothing is waited for."""
    monkeypatch.setattr(gathering, "SPREAD", 1e9)
    monkeypatch.setattr(gathering, "LONGEST_WAIT_S", 1e9)


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requests whose handovers were told to any gathering."""
    names: list[str] = []
    expect = Gathering.expect

    def noted(gathering: Gathering, request_id: str) -> None:
        expect(gathering, request_id)
        names.append(request_id)

    monkeypatch.setattr(Gathering, "expect", noted)
    return names


async def _start(pair: Pair, wanted: worker_pb2.WorkRequest) -> Reply:
    ticket: KvTicket = await pair.prefill_link.start_prefill(wanted.request_id, list(wanted.prompt_token_ids))
    return pair.router.submit(wanted, ticket)


@pytest.mark.usefixtures("endless_waits")
async def test_answers_that_begin_together_decode_together(model_dir: Path, expected: list[str]) -> None:
    long, short = work_request("long", prompt(400)), work_request("short", prompt(20))
    async with worker_pair(model_dir) as pair:
        pair.prefill_pace.engine.delay_s = 0.1
        # So that the long one's first token is seen before many passes follow it.
        pair.decode_pace.engine.delay_s = 0.3
        replies = [await _start(pair, long)]
        await eventually(lambda: expected)
        replies.append(await _start(pair, short))
        await eventually(lambda: replies[0].tokens)
        assert len(replies[1].tokens) <= 3
        pair.decode_pace.engine.delay_s = 0.0
        for reply, wanted in zip(replies, (long, short), strict=True):
            await pair.router.end_of(reply)
            assert reply.tokens == aggregated_tokens(model_dir, wanted)
        await pair.quiet()


@pytest.mark.usefixtures("endless_waits")
async def test_an_answer_goes_on_when_the_other_is_cancelled(model_dir: Path, expected: list[str]) -> None:
    long, short = work_request("long", prompt(900)), work_request("short", prompt(20))
    async with worker_pair(model_dir) as pair:
        pair.prefill_pace.engine.delay_s = 0.3
        replies = [await _start(pair, long)]
        await eventually(lambda: expected)
        replies.append(await _start(pair, short))
        await eventually(lambda: len(replies[1].tokens) == 2)
        pair.router.cancel("long")
        await pair.router.end_of(replies[1])
        assert replies[0].tokens == []
        assert replies[1].tokens == aggregated_tokens(model_dir, short)
        await pair.quiet()


@pytest.mark.usefixtures("endless_waits")
async def test_a_running_answer_does_not_wait_for_a_later_prompt(model_dir: Path) -> None:
    async with worker_pair(model_dir) as pair:
        first = await _start(pair, work_request("first", prompt(20), max_tokens=40))
        pair.decode_pace.engine.delay_s = 0.01
        await eventually(lambda: len(first.tokens) > 2)
        pair.prefill_pace.engine.delay_s = 0.3
        later = await _start(pair, work_request("later", prompt(400)))
        await pair.router.end_of(first)
        assert later.tokens == []
        await pair.router.end_of(later)
        await pair.quiet()
