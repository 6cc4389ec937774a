"""The same answers, greedy and sampled, however they come about."""

from __future__ import annotations

import random

import pytest

from engine.api import EngineRequest, FinishReason
from engine.core import LLMEngine
from tests.engine.digest_model import (
    Answers,
    make_engine,
    make_engine_and_pool,
    params,
    reference,
    request,
    run_all,
)

_random = random.Random(5)


def _mixed(number: int) -> EngineRequest:
    prompt = [_random.randrange(23) for _ in range(_random.randrange(1, 60))]
    sampling = params(
        _random.randrange(2, 30),
        temperature=_random.choice([0.0, 0.8, 1.4]),
        seed=number,
        ignore_eos=_random.random() < 0.5,
    )
    return request(f"r{number}", prompt, sampling)


REQUESTS = [_mixed(number) for number in range(16)]


def check(answers: Answers) -> None:
    for wanted in REQUESTS:
        assert answers.of(wanted.request_id) == reference(wanted)


def run_together(engine: LLMEngine) -> Answers:
    for wanted in REQUESTS:
        engine.submit(wanted)
    answers, outputs = run_all(engine)
    assert all(not output.failures for output in outputs)
    return answers


def test_the_requests_are_mixed() -> None:
    ends = [reference(wanted)[1] for wanted in REQUESTS]
    assert {FinishReason.STOP, FinishReason.LENGTH} == set(ends)
    assert len({len(wanted.prompt_token_ids) for wanted in REQUESTS}) > 10


def test_one_at_a_time() -> None:
    engine = make_engine(num_blocks=200)
    answers = Answers()
    for wanted in REQUESTS:
        engine.submit(wanted)
        while engine.has_work():
            answers.take(engine.step())
    check(answers)


def test_a_batch_of_sixteen() -> None:
    check(run_together(make_engine(num_blocks=400)))


@pytest.mark.parametrize("chunk", [1, 7, 16])
@pytest.mark.parametrize("budget", [5, 40])
def test_chunked_prefill(chunk: int, budget: int) -> None:
    check(run_together(make_engine(num_blocks=400, prefill_chunk=chunk, max_batched_tokens=budget)))


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("num_blocks", [24, 30])
def test_preempted(num_blocks: int, cache: bool) -> None:
    engine = make_engine(num_blocks=num_blocks, enable_prefix_cache=cache)
    check(run_together(engine))
    assert engine.stats().preemptions_total > 0


def test_prefix_hits() -> None:
    engine = make_engine(num_blocks=400)
    check(run_together(engine))
    before = engine.stats().cached_tokens_total
    check(run_together(engine))
    assert engine.stats().cached_tokens_total - before > 300


def test_handed_over_between_two_engines() -> None:
    """Prefilled by one engine in chunks, its blocks copied as they are announced, decoded by another."""
    prefill, source = make_engine_and_pool(num_blocks=400, prefill_chunk=9)
    decode, target = make_engine_and_pool(num_blocks=60)
    answers = Answers()
    announced: dict[str, list[int]] = {wanted.request_id: [] for wanted in REQUESTS}
    first: dict[str, int] = {}
    for wanted in REQUESTS:
        prefill.submit_prefill(wanted)
    while prefill.has_work():
        output = prefill.step()
        for event in output.kv_ready:
            announced[event.request_id] += event.new_block_ids
        first.update((token.request_id, token.token_id) for token in output.tokens)
    waiting = list(REQUESTS)
    while waiting or decode.has_work():
        if waiting and (reservation := decode.reserve(waiting[0])) is not None:
            name = waiting.pop(0).request_id
            skip = reservation.num_unread_tokens // 4
            target[list(reservation.block_ids[skip:])] = source[announced[name][skip:]]
            decode.adopt(name, first[name])
            prefill.release(name)
        answers.take(decode.step())
    check(answers)
    assert prefill.stats().blocks_pinned == decode.stats().blocks_pinned == 0


def test_failed_over_in_mid_answer() -> None:
    engine = make_engine(num_blocks=400)
    for wanted in REQUESTS:
        answer, _ = reference(wanted)
        engine.submit(
            request(wanted.request_id, wanted.prompt_token_ids, wanted.sampling, answer[: len(answer) // 2])
        )
    answers, _ = run_all(engine)
    for wanted in REQUESTS:
        answer, end = reference(wanted)
        assert answers.of(wanted.request_id) == (answer[len(answer) // 2 :], end)
