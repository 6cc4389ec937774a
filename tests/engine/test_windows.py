"""Blocks behind the window of a layer group are let go, and nobody notices."""

from __future__ import annotations

import dataclasses

import pytest

from engine.api import EngineRequest
from engine.core import LLMEngine
from tests.engine.digest_model import (
    Answers,
    DigestModel,
    holds,
    make_engine,
    make_engine_and_pool,
    params,
    reference,
    request,
    run_all,
    transfer,
)

BLOCK, WINDOW = 4, 10
PROMPT = [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13]
# Blocks that reach a window of 10 tokens, in whatever place it stands, and the one that grows.
REACH = -(-(WINDOW - 1) // BLOCK) + 1


def windowed(num_blocks: int = 64, **settings: float) -> LLMEngine:
    return make_engine(num_blocks, BLOCK, DigestModel(windows=(WINDOW,)), **settings)


def expected(wanted: EngineRequest, engine: LLMEngine) -> object:
    return reference(wanted, engine.max_model_len, (WINDOW,))


def test_memory_stays_bounded_however_long_the_answer() -> None:
    engine = windowed()
    wanted = request("a", PROMPT, params(200))
    engine.submit(wanted)
    engine.step()
    pinned = []
    answer = [reference(wanted, windows=(WINDOW,))[0][0]]
    while engine.has_work():
        answer += [token.token_id for token in engine.step().tokens]
        pinned.append(engine.stats().blocks_pinned)
    assert tuple(answer) == reference(wanted, windows=(WINDOW,))[0]
    assert len(answer) == 200
    assert max(pinned[2:]) <= REACH


def test_a_long_prompt_lets_blocks_go_chunk_by_chunk() -> None:
    engine = windowed(prefill_chunk=8)
    wanted = request("a", PROMPT * 5, params(4))
    engine.submit(wanted)
    engine.step()
    first = engine.stats().blocks_pinned
    for _ in range(5):
        engine.step()
    assert engine.stats().blocks_pinned == first - 9
    answers, _ = run_all(engine)
    assert answers.of("a") == expected(wanted, engine)


def test_a_hit_needs_no_more_than_the_window_reaches() -> None:
    engine = windowed(num_blocks=20)
    long = PROMPT * 4
    engine.submit(request("a", long, params(1)))
    run_all(engine)
    # What lies behind the window was let go first, so it is evicted first.
    engine.submit(request("b", [14] * 36, params(1)))
    run_all(engine)
    wanted = request("c", [*long, 15, 16], params(6))
    before = engine.stats().cached_tokens_total
    engine.submit(wanted)
    answers, _ = run_all(engine)
    assert answers.of("c") == expected(wanted, engine)
    assert engine.stats().cached_tokens_total - before == len(long)


def test_a_hole_within_the_window_is_no_hit() -> None:
    engine = windowed(num_blocks=20)
    long = PROMPT * 2
    engine.submit(request("a", long, params(1)))
    run_all(engine)
    cached = engine._blocks.pool.cached_blocks()
    last = engine._blocks.cache.block_of(engine.cached_block_hashes()[-2])
    assert last in cached
    engine._blocks.cache.evict(last)
    engine._blocks.pool.discard(last)
    wanted = request("c", [*long, 15], params(6))
    engine.submit(wanted)
    answers, outputs = run_all(engine)
    assert answers.of("c") == expected(wanted, engine)
    # Blocks 1 to 4 of 6 are left as the longest part that is whole.
    assert outputs[0].num_tokens == len(long) + 1 - 4 * BLOCK


@pytest.mark.parametrize("swap_blocks", [0, 2, 100])
def test_preempted_and_back(swap_blocks: int) -> None:
    engine = windowed(num_blocks=12, max_model_len=48, swap_blocks=swap_blocks)
    worse = dataclasses.replace(request("worse", PROMPT, params(30)), priority=1)
    better = request("better", [14] * 40, params(3))
    answers = Answers()
    engine.submit(worse)
    for _ in range(15):
        answers.take(engine.step())
    engine.submit(better)
    while engine.has_work():
        answers.take(engine.step())
    for each in (worse, better):
        assert answers.of(each.request_id) == expected(each, engine)
    stats = engine.stats()
    assert (stats.preemptions_total, stats.swaps_total) == (1, int(swap_blocks > 2))
    # Only what its window reaches went to host memory, and no more came back.
    assert stats.swapped_in_blocks_total <= stats.swapped_out_blocks_total <= REACH
    assert (stats.blocks_pinned, stats.swap_blocks_used) == (0, 0)


def test_a_context_for_another_worker_is_held_and_read_as_far_as_its_window_reaches() -> None:
    source, source_pool = make_engine_and_pool(64, BLOCK, DigestModel(windows=(WINDOW,)))
    target, target_pool = make_engine_and_pool(64, BLOCK, DigestModel(windows=(WINDOW,)))
    # The prefill side has had most of the prompt, whose blocks behind the window it let go.
    long = PROMPT * 4
    source.submit(request("before", long, params(1)))
    run_all(source)
    wanted = request("a", [*long, 15, 16, 17, 18, 19], params(30))
    source.submit_prefill(wanted)
    _, outputs = run_all(source)
    blocks = [block for output in outputs for event in output.kv_ready for block in event.new_block_ids]
    context = list(wanted.prompt_token_ids)
    assert holds(source_pool, blocks, context, len(context), (WINDOW,))
    assert source.stats().blocks_pinned <= REACH
    reservation = target.reserve(wanted)
    assert reservation is not None
    first = reservation.num_unread_tokens // BLOCK
    assert all(blocks[first:])
    transfer(target_pool, reservation.block_ids, context, skip=reservation.num_unread_tokens)
    target.adopt("a", outputs[-1].tokens[0].token_id)
    pinned_before = target.stats().blocks_pinned
    answers, _ = run_all(target)
    assert answers.of("a") == expected(wanted, target)
    # Only what its window reaches was read, and held.
    assert reservation.block_ids.count(0) * BLOCK == reservation.num_unread_tokens > 0
    assert pinned_before <= REACH + 1
    # Its prompt is a hit there, of the last blocks alone, which are then not read.
    again = request("b", [*context, 20, 21, 22], params(4))
    reservation = target.reserve(again)
    assert reservation is not None
    hits = reservation.num_unread_tokens // BLOCK
    assert hits == len(context) // BLOCK
    assert 0 < reservation.block_ids.count(0) < hits
    assert all(reservation.block_ids[hits:])
    transfer(target_pool, reservation.block_ids, list(again.prompt_token_ids), hits * BLOCK)
    target.adopt("b", reference(again, windows=(WINDOW,))[0][0])
    answers, _ = run_all(target)
    assert answers.of("b") == expected(again, target)


def test_a_window_as_long_as_every_context_is_none() -> None:
    engine = make_engine(64, BLOCK, DigestModel(windows=(256,)))
    assert engine.max_model_len == 256
    engine.submit(request("a", PROMPT * 4, params(3)))
    engine.step()
    assert engine.stats().blocks_pinned == len(PROMPT) + 1
