"""Log probabilities, grammars and all other parameters over a handover and without one."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import grpc
import jsonschema
import pytest

from decode_worker.outbox import Answer, Outbox
from engine.api import GrammarSpec
from engine.grammar.base import CompiledGrammar
from kvrelay.v1 import common_pb2, decode_pb2, worker_pb2
from tests.support.aggregated import aggregated_outputs
from tests.support.pair import Pair, worker_pair
from tests.support.requests import PREFILL_CHUNK, prompt, work_request
from tests.support.router_client import Reply
from worker.requests import logprobs_message

WorkError = decode_pb2.WorkError
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "sure": {"type": "boolean"}},
    "required": ["name", "sure"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
BROKEN = common_pb2.Grammar(regex="(a")
ALL: dict[str, Any] = {
    "temperature": 0.9,
    "top_p": 0.95,
    "top_k": 40,
    "min_p": 0.01,
    "typical_p": 0.95,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.2,
    "repetition_penalty": 1.2,
    "logit_bias": {65: 3.0, 66: -4.0},
    "bad_words": [common_pb2.TokenSequence(ids=[70]), common_pb2.TokenSequence(ids=[65, 65])],
    "allowed_token_ids": range(40, 220),
    "logprobs": 3,
    "prompt_logprobs": 2,
    "min_tokens": 3,
}


async def _reply(pair: Pair, request: worker_pb2.WorkRequest, remote: bool) -> Reply:
    ticket = None
    if remote:
        ticket = (await pair.prefill_link.start_prefill_of(request)).ticket
    reply = pair.router.submit(request, ticket)
    await pair.router.end_of(reply)
    return reply


@pytest.mark.parametrize("remote", [False, True])
async def test_every_parameter_at_once(model_dir: Path, remote: bool) -> None:
    requests = [
        work_request(f"r{n}", prompt(length, seed=n), seed=n, **ALL)
        for n, length in enumerate((1, 2, 40, PREFILL_CHUNK * 2 + 3))
    ]
    async with worker_pair(model_dir) as pair:
        replies = await asyncio.gather(*(_reply(pair, request, remote) for request in requests))
        await pair.quiet()
    for request, reply in zip(requests, replies, strict=True):
        outputs = aggregated_outputs(model_dir, request)
        tokens = [token for output in outputs for token in output.tokens]
        (done,) = (done for output in outputs for done in output.prefills_done)
        assert reply.tokens == [token.token_id for token in tokens]
        _assert_close(reply.logprobs, [logprobs_message(t.logprobs) for t in tokens if t.logprobs])
        _assert_close(reply.prompt_logprobs, list(map(logprobs_message, done.prompt_logprobs)))
        assert len(reply.logprobs) == len(reply.tokens)
        assert len(reply.prompt_logprobs) == len(request.prompt_token_ids) - 1


def _assert_close(said: list[common_pb2.TokenLogprobs], expected: list[common_pb2.TokenLogprobs]) -> None:
    assert len(said) == len(expected)
    for one, other in zip(said, expected, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert list(one.top_logprobs) == pytest.approx(list(other.top_logprobs), abs=1e-4)


@pytest.mark.parametrize("remote", [False, True])
async def test_grammars(model_dir: Path, remote: bool) -> None:
    grammar = common_pb2.Grammar(json_schema=json.dumps(SCHEMA))
    requests = [
        work_request(f"r{n}", prompt(30, seed=n), temperature=1.0, seed=n, max_tokens=80, grammar=grammar)
        for n in range(12)
    ]
    async with worker_pair(model_dir) as pair:
        replies = await asyncio.gather(*(_reply(pair, request, remote) for request in requests))
        await pair.quiet()
    for reply in replies:
        assert reply.end is not None
        assert reply.end.finish_reason == common_pb2.FINISH_REASON_STOP
        jsonschema.validate(json.loads(bytes(t for t in reply.tokens if t < 256)), SCHEMA)
    assert len({bytes(t for t in reply.tokens if t < 256) for reply in replies}) > 8


async def test_a_grammar_after_a_failover(model_dir: Path) -> None:
    grammar = common_pb2.Grammar(regex="[a-f]{6}-[0-9]{4}")
    request = work_request("r", prompt(20), temperature=1.0, max_tokens=30, grammar=grammar)
    async with worker_pair(model_dir) as pair:
        whole = (await _reply(pair, request, remote=True)).tokens
        for given in (1, 6, 9):
            again = work_request(
                f"r{given}", prompt(20), attempt=2, temperature=1.0, max_tokens=30, grammar=grammar,
                resumed=whole[:given],
            )  # fmt: skip
            for remote in (False, True):
                again.attempt += 1
                assert (await _reply(pair, again, remote)).tokens == whole[given:]
        await pair.quiet()


async def test_a_broken_grammar_is_refused_and_leaves_nothing(model_dir: Path) -> None:
    async with worker_pair(model_dir) as pair:
        request = work_request("bad", prompt(40), grammar=BROKEN)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await pair.prefill_link.start_prefill_of(request)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "unclosed group" in (refused.value.details() or "")
        end = await pair.router.end_of(pair.router.submit(request))
        assert end.error.kind == WorkError.KIND_INVALID
        assert "unclosed group" in end.error.message
        # A ticket for a sound request, given to the decode worker with a broken one: it must not live on.
        sound = work_request("mixed", prompt(40))
        ticket = (await pair.prefill_link.start_prefill_of(sound)).ticket
        mixed = work_request("mixed", prompt(40), grammar=BROKEN)
        end = await pair.router.end_of(pair.router.submit(mixed, ticket))
        assert end.error.kind == WorkError.KIND_INVALID
        await pair.quiet()
        good = work_request("good", prompt(40))
        assert len((await _reply(pair, good, remote=True)).tokens) == 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logit_bias": {5000: 1.0}}, "logit_bias has token 5000"),
        ({"bad_words": [common_pb2.TokenSequence()]}, "bad_words has a sequence without tokens"),
        ({"allowed_token_ids": [300]}, "allowed_token_ids has token 300"),
        ({"logprobs": 21}, "logprobs is 21, but must be from 0 to 20"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"typical_p": 0.0}, "typical_p is 0.0"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"presence_penalty": float("nan")}, "presence_penalty is nan"),
    ],
)
async def test_values_out_of_range_are_refused_by_name(
    model_dir: Path, changes: dict[str, Any], message: str
) -> None:
    async with worker_pair(model_dir) as pair:
        end = await pair.router.end_of(pair.router.submit(work_request("r", prompt(9), **changes)))
        assert end.error.kind == WorkError.KIND_INVALID
        assert message in end.error.message
        await pair.quiet()


async def test_a_request_that_is_cancelled_while_its_grammar_is_compiled(model_dir: Path) -> None:
    async with worker_pair(model_dir) as pair:
        compiler = pair.decode_pace.assembly.grammars
        assert compiler is not None
        compile_now = compiler.compile
        gate = threading.Event()

        def compile_later(spec: GrammarSpec) -> CompiledGrammar:
            gate.wait(30)
            return compile_now(spec)

        compiler.compile = compile_later  # type: ignore[method-assign]
        for remote in (False, True):
            gate.clear()
            name = f"r{remote}"
            request = work_request(name, prompt(40))
            ticket = (await pair.prefill_link.start_prefill_of(request)).ticket if remote else None
            request.sampling.grammar.regex = "[a-z]{100}"
            reply = pair.router.submit(request, ticket)
            pair.router.cancel(name)
            end = await pair.router.end_of(reply)
            assert end.finish_reason == common_pb2.FINISH_REASON_CANCELLED
            gate.set()
            await pair.quiet()
            assert (reply.ends, reply.tokens) == (1, [])


async def test_large_answers_are_spread_over_messages() -> None:
    outbox = Outbox(keep_s=60.0)
    many = [common_pb2.TokenLogprobs(logprob=-1.0, rank=1, top_token_ids=range(20), top_logprobs=[-1.0] * 20)]
    answers = [
        Answer(f"r{n}", 1, 0, token_ids=[7], logprobs=many, prompt_logprobs=many * 30_000) for n in range(9)
    ]
    for answer in answers:
        outbox.open(answer)
        outbox.changed(answer)
        answer.end = decode_pb2.EndEvent(request_id=answer.request_id, attempt=1)
    sent: list[str] = []
    messages = 0
    while len(sent) < 9:
        await outbox.wait(0.0)
        message = outbox.take(step=1)
        assert not message.heartbeat
        assert message.ByteSize() < 16 << 20
        assert [end.request_id for end in message.ends] == [event.request_id for event in message.tokens]
        sent += [event.request_id for event in message.tokens]
        messages += 1
    assert sent == [answer.request_id for answer in answers]
    assert messages > 2
    assert outbox.take(step=2).heartbeat
