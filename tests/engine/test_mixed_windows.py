"""Models whose layers keep different histories: each group lets go what it may, and nobody notices."""

from __future__ import annotations

import dataclasses

import pytest

from engine.api import EngineRequest
from engine.core import LLMEngine
from tests.engine.digest_model import (
    Answers,
    DigestModel,
    first_seen,
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
WINDOWS = (0, WINDOW)
PROMPT = [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13]
# Blocks that reach a window of 10 tokens, in whatever place it stands, and the one that grows.
REACH = -(-(WINDOW - 1) // BLOCK) + 1


def mixed(num_blocks: int = 128, windows: tuple[int, ...] = WINDOWS, **settings: float) -> LLMEngine:
    return make_engine(num_blocks, BLOCK, DigestModel(windows=windows), **settings)


def expected(wanted: EngineRequest, engine: LLMEngine, windows: tuple[int, ...] = WINDOWS) -> object:
    return reference(wanted, engine.max_model_len, windows)


# One group each, two of the longer history, two of the shorter, three histories.
@pytest.mark.parametrize("windows", [(0, 10), (0, 10, 0), (0, 10, 10, 10, 0), (10, 4, 0)])
def test_only_the_longest_history_grows(windows: tuple[int, ...]) -> None:
    engine = mixed(256, windows)
    groups = engine._blocks.num_groups
    full = sum(1 for window in engine._blocks._windows if not window)
    assert 0 < full < groups
    wanted = request("a", PROMPT, params(100))
    engine.submit(wanted)
    answer = []
    while engine.has_work():
        answer += [token.token_id for token in engine.step().tokens]
        # After a step the KV of the last token drawn is not written yet.
        pages = -(-(len(PROMPT) + len(answer)) // BLOCK)
        pinned = engine.stats().blocks_pinned
        assert pinned <= full * pages + (groups - full) * (REACH + 1)
        assert len(answer) == 100 or pinned >= full * (pages - 1)
    assert tuple(answer) == reference(wanted, windows=windows)[0]
    assert engine.stats().blocks_pinned == 0


@pytest.mark.parametrize("held", [False, True])
def test_a_long_prompt_lets_blocks_go_chunk_by_chunk(held: bool) -> None:
    engine = mixed(prefill_chunk=8)
    wanted = request("a", PROMPT * 5, params(4))
    (engine.submit_prefill if held else engine.submit)(wanted)
    engine.step()
    first = engine.stats().blocks_pinned
    assert first == 2 * 15 + (0 if held else 2)
    for _ in range(5):
        engine.step()
    # 48 tokens are computed: the next sees 9 before it, from page 9 on.
    assert engine.stats().blocks_pinned == first - 9
    answers, _ = run_all(engine)
    assert answers.of("a")[0] == reference(wanted, windows=WINDOWS)[0][: 1 if held else 4]


def test_what_one_history_lets_go_another_takes() -> None:
    """Three whole contexts do not fit, but the third does once the windows of two have moved on."""
    engine = mixed(num_blocks=76)
    assert 3 * 2 * 16 > 76
    wanted = [request(f"r{number}", [number, *PROMPT * 5], params(6)) for number in range(3)]
    for each in wanted:
        engine.submit(each)
    running = 0
    answers = Answers()
    while engine.has_work():
        answers.take(engine.step())
        running = max(running, engine.stats().running)
    assert running == 3
    assert engine.stats().preemptions_total == 0
    for each in wanted:
        assert answers.of(each.request_id) == expected(each, engine)


def test_a_hit_needs_all_of_the_longest_history_and_the_reach_of_the_others() -> None:
    engine = mixed(num_blocks=40)
    long = PROMPT * 4
    engine.submit(request("a", long, params(1)))
    run_all(engine)
    names = engine.cached_block_hashes()
    # The blocks behind the window were let go first, and are evicted first.
    engine.submit(request("b", [14] * 36, params(1)))
    run_all(engine)
    held = [engine._blocks._caches[1].block_of(name) is not None for name in names]
    assert not held[0]
    assert all(held[-REACH:])
    wanted = request("c", [*long, 15, 16], params(6))
    before = engine.stats().cached_tokens_total
    engine.submit(wanted)
    answers, _ = run_all(engine)
    assert answers.of("c") == expected(wanted, engine)
    assert engine.stats().cached_tokens_total - before == len(long)


@pytest.mark.parametrize(
    ("group", "page", "hit"),
    # Six pages; pages 4, 5 are within reach of a hit of six, and pages 2 to 4 of one of five.
    [(0, 5, 5), (0, 3, 3), (1, 5, 5), (1, 4, 4), (1, 3, 3), (1, 2, 6), (1, 0, 6)],
)
def test_a_hole_shortens_a_hit_only_where_it_is_reached(group: int, page: int, hit: int) -> None:
    engine = mixed()
    long = PROMPT * 2
    engine.submit(request("a", long, params(1)))
    run_all(engine)
    blocks = engine._blocks
    names = engine.cached_block_hashes()
    # In the cache of a history without a window what follows goes too.
    lost = names[page:] if group == 0 else [names[page]]
    for name in reversed(lost):
        block = blocks._caches[group].block_of(name)
        assert block is not None
        blocks._caches[group].evict(block)
        blocks.pool.discard(block)
    engine.check_invariants()
    wanted = request("c", [*long, 15], params(6))
    engine.submit(wanted)
    answers, outputs = run_all(engine)
    assert answers.of("c") == expected(wanted, engine)
    assert outputs[0].num_tokens == len(long) + 1 - hit * BLOCK


@pytest.mark.parametrize("swap_blocks", [0, 4, 100])
def test_preempted_and_back(swap_blocks: int) -> None:
    engine = mixed(num_blocks=24, max_model_len=48, swap_blocks=swap_blocks)
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
    assert (stats.preemptions_total, stats.swaps_total) == (1, int(swap_blocks > 4))
    # All pages of the full history, and of the other what its window reaches.
    pages = -(-(len(PROMPT) + 15) // BLOCK)
    assert stats.swapped_in_blocks_total <= stats.swapped_out_blocks_total <= pages + REACH
    assert (stats.blocks_pinned, stats.swap_blocks_used) == (0, 0)


def test_handed_over_as_far_as_each_window_reaches() -> None:
    source, source_pool = make_engine_and_pool(128, BLOCK, DigestModel(windows=WINDOWS), prefill_chunk=12)
    target, target_pool = make_engine_and_pool(128, BLOCK, DigestModel(windows=WINDOWS))
    context = [*PROMPT * 4, 15, 16, 17, 18, 19]
    wanted = request("a", context, params(30))
    source.submit_prefill(wanted)
    _, outputs = run_all(source)
    blocks = [block for output in outputs for event in output.kv_ready for block in event.new_block_ids]
    pages, behind = -(-len(context) // BLOCK), first_seen(WINDOW, len(context), BLOCK)
    assert len(blocks) == 2 * pages
    assert behind > 5
    assert source.stats().blocks_pinned == 2 * pages - behind
    assert holds(source_pool, blocks, context, len(context), WINDOWS)
    reservation = target.reserve(wanted)
    assert reservation is not None
    assert reservation.num_unread_tokens == 0
    assert all(reservation.block_ids[0::2])
    assert [block > 0 for block in reservation.block_ids[1::2]] == [page >= behind for page in range(pages)]
    transfer(target_pool, reservation.block_ids, context, windows=WINDOWS)
    target.adopt("a", outputs[-1].tokens[0].token_id)
    answers, _ = run_all(target)
    assert answers.of("a") == expected(wanted, target)
    # The same prompt again: what the target has of it, in every group, is not read.
    again = request("b", [*context, 20, 21, 22], params(4))
    reservation = target.reserve(again)
    assert reservation is not None
    assert reservation.num_unread_tokens == len(context) // BLOCK * BLOCK
    transfer(
        target_pool, reservation.block_ids, [*context, 20, 21, 22], len(context) // BLOCK * BLOCK, WINDOWS
    )
    target.adopt("b", reference(again, windows=WINDOWS)[0][0])
    answers, _ = run_all(target)
    assert answers.of("b") == expected(again, target)
    source.release("a")
    assert (source.stats().blocks_pinned, target.stats().blocks_pinned) == (0, 0)


def test_a_short_hit_is_followed_by_what_each_group_lacks() -> None:
    """The full history goes on behind the hit; the window's begins where the next token sees it."""
    target, pool = make_engine_and_pool(128, BLOCK, DigestModel(windows=WINDOWS))
    target.submit(request("before", PROMPT[:9], params(1)))
    run_all(target)
    context = [*PROMPT * 4, 15]
    wanted = request("a", context, params(20))
    reservation = target.reserve(wanted)
    assert reservation is not None
    assert reservation.num_unread_tokens == 2 * BLOCK
    behind = first_seen(WINDOW, len(context), BLOCK)
    assert reservation.block_ids[1::2].count(0) == behind > 2
    for block in reservation.block_ids[2 * 2 :]:
        pool[block] = -7.0
    transfer(pool, reservation.block_ids, context, 2 * BLOCK, WINDOWS)
    target.adopt("a", reference(wanted, windows=WINDOWS)[0][0])
    answers, _ = run_all(target)
    assert answers.of("a") == expected(wanted, target)


def test_unsettled_blocks_of_either_group_are_quarantined() -> None:
    target, _ = make_engine_and_pool(64, BLOCK, DigestModel(windows=WINDOWS))
    reservation = target.reserve(request("a", PROMPT * 2, params(4)))
    assert reservation is not None
    unsettled = frozenset(block for block in reservation.block_ids[-4:])
    target.abandon("a", unsettled)
    assert target.stats().blocks_quarantined == 4
    target.check_invariants()
    target.settle(sorted(unsettled))
    assert target.stats().blocks_free == 64


def test_windows_as_long_as_every_context_are_none() -> None:
    engine = mixed(128, (0, 256))
    assert engine.max_model_len == 256
    engine.submit(request("a", PROMPT * 4, params(3)))
    engine.step()
    assert engine.stats().blocks_pinned == 2 * (len(PROMPT) + 1)
