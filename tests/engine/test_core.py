from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from engine.api import Engine, EngineRequest, FinishReason, RequestTooLargeError, SequenceFailure
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.runner import MAX_FAILED_STEPS
from prefix_index.hashing import ChainHasher
from tests.engine.digest_model import (
    EOS,
    MAX_MODEL_LEN,
    VOCAB,
    Answers,
    DigestModel,
    make_engine,
    make_engine_and_pool,
    params,
    reference,
    request,
    run_all,
)

PROMPT = [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


def test_implements_the_protocol() -> None:
    engine: Engine = make_engine()
    assert not engine.has_work()


def test_answer_equals_the_reference() -> None:
    engine = make_engine()
    wanted = request("a", PROMPT)
    engine.submit(wanted)
    answers, outputs = run_all(engine)
    assert answers.of("a") == reference(wanted)
    assert [output.step for output in outputs] == list(range(1, len(outputs) + 1))
    assert [output.num_tokens for output in outputs] == [10, 1, 1, 1, 1, 1, 1, 1]
    assert {output.batch_size for output in outputs} == {1}
    assert len(answers.of("a")[0]) == 8
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_pinned, stats.generated_tokens_total) == (0, 0, 0, 8)
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total == 64


def test_an_idle_step_is_empty() -> None:
    output = make_engine().step()
    assert output.tokens == output.kv_ready == output.prefills_done == output.failures == ()
    assert (output.batch_size, output.num_tokens) == (0, 0)


def eos_request() -> tuple[tuple[int, ...], int]:
    """A prompt whose greedy answer has EOS neither first nor late, and the EOS's index."""
    for first in range(VOCAB):
        for second in range(VOCAB):
            prompt = (first, second, 7)
            answer, _ = reference(request("x", prompt, params(16)))
            if EOS in answer and 3 <= answer.index(EOS) <= 8:
                return prompt, answer.index(EOS)
    raise AssertionError("no such prompt")


def test_eos_ends_unless_ignored() -> None:
    prompt, index = eos_request()
    engine = make_engine()
    engine.submit(request("eos", prompt, params(16, ignore_eos=False)))
    engine.submit(request("ignored", prompt, params(16)))
    answers, _ = run_all(engine)
    tokens, reason = answers.of("eos")
    assert (len(tokens), tokens[-1], reason) == (index + 1, EOS, FinishReason.STOP)
    assert answers.of("ignored")[1] is FinishReason.LENGTH
    assert len(answers.of("ignored")[0]) == 16


def test_min_tokens_puts_the_end_off() -> None:
    prompt, index = eos_request()
    wanted = request("a", prompt, params(16, ignore_eos=False, min_tokens=index + 2))
    engine = make_engine()
    engine.submit(wanted)
    answers, _ = run_all(engine)
    assert answers.of("a") == reference(wanted)
    assert EOS not in answers.of("a")[0][: index + 2]
    assert len(answers.of("a")[0]) > index + 1


def test_stop_tokens_end_even_where_eos_is_ignored() -> None:
    answer, _ = reference(request("x", PROMPT))
    sampling = dataclasses.replace(params(), stop_token_ids=frozenset({answer[2]}))
    engine = make_engine()
    engine.submit(request("a", PROMPT, sampling))
    answers, _ = run_all(engine)
    tokens, reason = answers.of("a")
    assert tokens == answer[: answer.index(answer[2]) + 1]
    assert reason is FinishReason.STOP


def test_the_context_limit_ends_an_answer() -> None:
    engine = make_engine(max_model_len=13)
    engine.submit(request("a", PROMPT))
    answers, _ = run_all(engine)
    assert answers.of("a") == (reference(request("a", PROMPT))[0][:3], FinishReason.LENGTH)


def test_a_lone_sequence_may_fill_the_whole_pool() -> None:
    engine = make_engine(num_blocks=4)
    assert engine.max_model_len == 16
    engine.submit(request("a", PROMPT, params(100)))
    answers, _ = run_all(engine)
    assert answers.of("a") == (reference(request("a", PROMPT, params(6)))[0], FinishReason.LENGTH)


def test_resumed_tokens_are_context_and_count() -> None:
    whole, end = reference(request("a", PROMPT))
    engine = make_engine()
    engine.submit(request("a", PROMPT, resumed=whole[:3]))
    answers, outputs = run_all(engine)
    assert answers.first["a"] == 3
    assert answers.of("a") == (whole[3:], end)
    assert outputs[0].num_tokens == len(PROMPT) + 3


def test_sampled_answers_resume_where_they_were() -> None:
    sampling = params(12, temperature=1.5, seed=7)
    whole, end = reference(request("a", PROMPT, sampling))
    assert whole != reference(request("a", PROMPT, params(12)))[0]
    engine = make_engine()
    engine.submit(request("a", PROMPT, sampling, resumed=whole[:5]))
    engine.submit(request("b", PROMPT, sampling))
    answers, _ = run_all(engine)
    assert answers.of("a") == (whole[5:], end)
    assert answers.of("b") == (whole, end)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (request("a", []), "prompt is empty"),
        (request("a", [1, VOCAB]), "token ids must be from 0 to 22"),
        (request("a", [1, -1]), "token ids must be from 0 to 22"),
        (request("a", [1], resumed=[VOCAB]), "token ids must be from 0 to 22"),
        (request("a", [1], params(2), resumed=[1, 2]), "nothing is left to generate"),
        (request("taken", [1]), "taken is in use"),
    ],
)
@pytest.mark.parametrize("method", ["submit", "submit_prefill", "reserve"])
def test_bad_requests_are_refused_and_leave_no_trace(
    wanted: EngineRequest, message: str, method: str
) -> None:
    engine = make_engine()
    engine.submit(request("taken", [1]))
    with pytest.raises(ValueError, match=message):
        getattr(engine, method)(wanted)
    engine.check_invariants()
    answers, _ = run_all(engine)
    assert set(answers.tokens) == {"taken"}


@pytest.mark.parametrize("method", ["submit", "submit_prefill", "reserve"])
def test_what_can_never_fit_is_refused(method: str) -> None:
    engine = make_engine(num_blocks=4)
    with pytest.raises(RequestTooLargeError, match="16"):
        getattr(engine, method)(request("a", [1] * 16))
    getattr(engine, method)(request("a", [1] * 15))


def test_limits_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(ValueError, match=f"the model's limit is {MAX_MODEL_LEN}"):
        make_engine(num_blocks=1000, max_model_len=MAX_MODEL_LEN + 1)
    with pytest.raises(ValueError, match="the KV pool holds 16"):
        make_engine(num_blocks=4, max_model_len=17)
    assert make_engine(num_blocks=1000).max_model_len == MAX_MODEL_LEN
    config = EngineConfig(model_dir=Path("unused"), block_size=8)
    with pytest.raises(ValueError, match="hold 4 tokens, not 8"):
        LLMEngine(DigestModel(), torch.zeros(9, 1, 2, 1, 4, 1), config, ChainHasher("m", 8))


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_cancel_frees_at_once(steps: int) -> None:
    engine = make_engine(prefill_chunk=4)
    engine.submit(request("a", PROMPT))
    for _ in range(steps):
        engine.step()
    engine.cancel("a")
    engine.check_invariants()
    assert engine.stats().blocks_pinned == 0
    engine.cancel("a")
    engine.submit(request("a", PROMPT))
    answers, _ = run_all(engine)
    assert answers.of("a") == reference(request("a", PROMPT))


def test_unknown_ids_are_ignored() -> None:
    engine = make_engine()
    engine.cancel("a")
    engine.release("a")
    engine.abandon("a")


def test_prefill_done_reports_cached_prompt_tokens_once() -> None:
    engine = make_engine()
    counts = []
    for name, prompt in (("a", PROMPT), ("b", PROMPT), ("c", PROMPT[:8]), ("d", [*PROMPT[:9], 0])):
        engine.submit(request(name, prompt))
        _, outputs = run_all(engine)
        done = [done for output in outputs for done in output.prefills_done]
        assert [d.request_id for d in done] == [name]
        assert done[0].queue_s >= 0
        assert done[0].prefill_s >= 0
        counts.append(done[0].cached_tokens)
    # "c" ends at a block's end: its last token is computed again for the logits.
    assert counts == [0, 8, 7, 8]
    stats = engine.stats()
    assert (stats.prompt_tokens_total, stats.cached_tokens_total) == (38, 23)


def test_a_fully_cached_context_computes_one_token_and_stores_nothing() -> None:
    model = DigestModel()
    engine, pool = make_engine_and_pool(model=model)
    engine.submit(request("a", PROMPT[:8], params(1)))
    run_all(engine)
    before = pool[1:].clone()
    engine.submit(request("b", PROMPT[:8], params(1)))
    answers, outputs = run_all(engine)
    assert answers.of("b") == reference(request("b", PROMPT[:8], params(1)))
    assert [output.num_tokens for output in outputs] == [1]
    assert model.batches[-1].slots.tolist() == [[3]]
    assert torch.equal(pool[1:], before)


def test_a_second_turn_hits_generated_blocks() -> None:
    engine = make_engine()
    engine.submit(request("a", PROMPT))
    run_all(engine)
    answer = reference(request("a", PROMPT))[0]
    follow_up = request("b", [*PROMPT, *answer, 1, 2])
    engine.submit(follow_up)
    answers, outputs = run_all(engine)
    assert answers.of("b") == reference(follow_up)
    # 17 of the 18 tokens have KV, for the last was never run: 4 full blocks.
    assert outputs[0].prefills_done[0].cached_tokens == 16


def test_salts_do_not_share() -> None:
    engine = make_engine()
    engine.submit(request("a", PROMPT, salt="tenant"))
    run_all(engine)
    engine.submit(request("b", PROMPT))
    _, outputs = run_all(engine)
    assert outputs[0].prefills_done[0].cached_tokens == 0


def test_no_cache_where_it_is_off() -> None:
    engine = make_engine(enable_prefix_cache=False)
    for name in "ab":
        engine.submit(request(name, PROMPT))
        _, outputs = run_all(engine)
        assert outputs[0].prefills_done[0].cached_tokens == 0
        assert all(not output.cache_events.stored for output in outputs)
    assert engine.cached_block_hashes() == []
    assert engine.stats().blocks_free == 64


def test_blocks_are_published_after_the_step_that_filled_them() -> None:
    engine = make_engine(prefill_chunk=6)
    engine.submit(request("a", PROMPT, params(4)))
    chain = ChainHasher("digest", 4).chain([*PROMPT, *reference(request("a", PROMPT))[0]])
    stored = [engine.step().cache_events.stored for _ in range(5)]
    assert stored == [(chain[0],), (chain[1],), (), (chain[2],), ()]
    assert engine.cached_block_hashes() == chain[:3]
    assert not engine.has_work()


def test_twins_in_one_batch_share_what_they_computed() -> None:
    engine = make_engine()
    for name in "ab":
        engine.submit(request(name, PROMPT, params(12)))
    output = engine.step()
    assert output.num_tokens == 20
    assert len(output.cache_events.stored) == 2
    assert engine.stats().blocks_pinned == 4
    answers, _ = run_all(engine)
    expected = reference(request("a", PROMPT, params(12)))
    assert answers.of("a")[0] == answers.of("b")[0] == expected[0][1:]
    assert engine.stats().blocks_cached == len(engine.cached_block_hashes()) == 5


def absent_token(*wanted: EngineRequest) -> int:
    """A token in none of the requests' prompts and answers."""
    seen = {token for each in wanted for token in (*each.prompt_token_ids, *reference(each)[0])}
    return min(set(range(VOCAB)) - seen)


def test_nan_fails_its_own_sequence_and_leaves_no_trace() -> None:
    good = request("good", [1, 2, 3, 4, 6], params(6))
    bad_token = absent_token(good)
    bad = request("bad", [1, 2, 3, 4, 6, 7, 8, 9, bad_token])
    engine, pool = make_engine_and_pool(model=DigestModel(nan=bad_token), prefill_chunk=4)
    answers = Answers()
    engine.submit(bad)
    engine.step()
    engine.submit(good)
    answers.take(engine.step())
    assert len(engine.cached_block_hashes()) == 2
    output = engine.step()
    assert [failure.request_id for failure in output.failures] == ["bad"]
    assert "not a number" in output.failures[0].message
    assert not pool.isnan().any()
    # What the failed sequence computed may be wrong: nobody finds it again, though the other one, which
    # shares a block, goes on.
    assert engine.cached_block_hashes() == []
    assert len(output.cache_events.evicted) == 2
    answers.take(output)
    while engine.has_work():
        answers.take(engine.step())
    assert answers.of("good") == reference(good)
    assert engine.cached_block_hashes() == []
    assert engine.stats().blocks_free == 64


def test_an_exception_is_traced_to_its_sequence() -> None:
    good = [request("a", [1, 2, 3]), request("b", [4, 3, 2, 1, 0])]
    bad_token = absent_token(*good)
    engine = make_engine(model=DigestModel(poison=bad_token))
    for each in (good[0], request("bad", [1, 2, 3, 4, 6, bad_token]), good[1]):
        engine.submit(each)
    answers, outputs = run_all(engine)
    assert outputs[0].failures == (SequenceFailure("bad", "RuntimeError: poisoned"),)
    assert answers.of("bad") == ((), None)
    for each in good:
        assert answers.of(each.request_id) == reference(each)
    assert engine.stats().blocks_pinned == 0


def test_a_model_that_always_raises_is_not_the_requests_fault() -> None:
    model = DigestModel()
    model.broken = True
    engine = make_engine(model=model)
    for step in range(MAX_FAILED_STEPS):
        for name in "ab":
            engine.submit(request(f"{name}{step}", PROMPT))
        if step < MAX_FAILED_STEPS - 1:
            assert len(engine.step().failures) == 2
    with pytest.raises(RuntimeError, match="poisoned"):
        engine.step()
