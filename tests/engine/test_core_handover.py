from __future__ import annotations

import dataclasses

import pytest
import torch

from engine.api import FinishReason, KvReady
from prefix_index.hashing import ChainHasher
from tests.engine.digest_model import (
    holds,
    make_engine,
    make_engine_and_pool,
    params,
    reference,
    request,
    run_all,
    transfer,
)

PROMPT = [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


def test_a_held_prefill_announces_whole_blocks_then_its_token() -> None:
    engine, pool = make_engine_and_pool(prefill_chunk=3)
    engine.submit_prefill(request("a", PROMPT))
    outputs = [engine.step() for _ in range(4)]
    ready = [event for output in outputs for event in output.kv_ready]
    assert [event.num_tokens for event in ready] == [4, 8, 10]
    assert all(event.start_unix_ns <= event.end_unix_ns for event in ready)
    blocks = [block for event in ready for block in event.new_block_ids]
    assert len(blocks) == 3
    assert holds(pool, blocks, PROMPT)
    assert [len(output.tokens) for output in outputs] == [0, 0, 0, 1]
    token = outputs[3].tokens[0]
    assert (token.index, token.token_id, token.finish_reason) == (
        0,
        reference(request("a", PROMPT))[0][0],
        None,
    )
    done = outputs[3].prefills_done[0]
    assert (done.request_id, done.cached_tokens) == ("a", 0)
    assert not engine.has_work()
    assert engine.stats().blocks_pinned == 3
    engine.release("a")
    engine.check_invariants()
    assert engine.stats().blocks_pinned == 0


def test_prefix_hits_come_with_the_first_announcement() -> None:
    engine, pool = make_engine_and_pool(prefill_chunk=4)
    engine.submit_prefill(request("a", PROMPT[:8]))
    run_all(engine)
    engine.submit_prefill(request("b", [*PROMPT, 3, 4, 0]))
    _, outputs = run_all(engine)
    ready = [event for output in outputs for event in output.kv_ready]
    assert [(event.num_tokens, len(event.new_block_ids)) for event in ready] == [(12, 3), (13, 1)]
    assert holds(pool, [b for event in ready for b in event.new_block_ids], [*PROMPT, 3, 4, 0])


def test_a_fully_cached_held_prefill_announces_everything_at_once() -> None:
    engine, pool = make_engine_and_pool()
    for name in "ab":
        engine.submit_prefill(request(name, PROMPT[:8]))
        _, outputs = run_all(engine)
    (output,) = outputs
    (event,) = output.kv_ready
    assert isinstance(event, KvReady)
    assert event.num_tokens == 8
    assert holds(pool, event.new_block_ids, PROMPT[:8])
    assert output.prefills_done[0].cached_tokens == 7


def test_twins_announce_the_block_that_stays() -> None:
    engine, pool = make_engine_and_pool()
    for name in "ab":
        engine.submit_prefill(request(name, PROMPT))
    output = engine.step()
    first, second = output.kv_ready
    assert first.new_block_ids[:2] == second.new_block_ids[:2]
    engine.release("a")
    engine.submit(request("other", [3] * 30, params(40)))
    run_all(engine)
    assert holds(pool, second.new_block_ids, PROMPT)


def test_held_blocks_outlive_pressure_and_the_queue_waits_for_release() -> None:
    engine, pool = make_engine_and_pool(num_blocks=8)
    engine.submit_prefill(request("held", PROMPT))
    held = engine.step().kv_ready[0].new_block_ids
    engine.submit(request("big", [2] * 20, params(4)))
    assert not engine.has_work()
    assert engine.step().num_tokens == 0
    engine.submit(request("small", [1], params(2)))
    # Strictly first come, first served: the small one does not overtake.
    assert not engine.has_work()
    assert holds(pool, held, PROMPT)
    engine.release("held")
    answers, _ = run_all(engine)
    assert answers.of("big") == reference(request("big", [2] * 20, params(4)))
    assert answers.of("small") == reference(request("small", [1], params(2)))


def test_held_prefills_that_do_not_fit_together_take_turns() -> None:
    """Each needs more than half of the pool: partial allocation of both would never end."""
    engine = make_engine(num_blocks=8, prefill_chunk=4, enable_prefix_cache=False)
    for name in "ab":
        engine.submit_prefill(request(name, [3] * 20))
    answers, _ = run_all(engine)
    assert set(answers.tokens) == {"a"}
    assert engine.stats().waiting == 1
    engine.release("a")
    answers, _ = run_all(engine)
    assert set(answers.tokens) == {"b"}


def test_a_decode_without_room_beside_held_blocks_waits() -> None:
    engine = make_engine(num_blocks=6)
    engine.submit(request("a", [1, 2, 3], params(12)))
    engine.step()
    engine.submit_prefill(request("held", [2] * 15))
    answers, _ = run_all(engine)
    assert "a" not in answers.ends
    assert engine.stats().waiting == 1
    assert engine.stats().preemptions_total == 1
    engine.release("held")
    rest, _ = run_all(engine)
    whole = reference(request("a", [1, 2, 3], params(12)))
    assert (*answers.of("a")[0], *rest.of("a")[0]) == whole[0][1:]


def test_release_ends_an_unfinished_prefill() -> None:
    engine = make_engine(prefill_chunk=4)
    engine.submit_prefill(request("a", PROMPT))
    engine.step()
    engine.release("a")
    engine.check_invariants()
    assert not engine.has_work()
    assert engine.stats().blocks_pinned == 0


def test_release_leaves_other_sequences_alone() -> None:
    engine = make_engine()
    engine.submit(request("a", PROMPT))
    engine.step()
    engine.release("a")
    assert engine.has_work()


def test_a_first_token_that_ends_still_holds_the_blocks() -> None:
    engine = make_engine()
    engine.submit_prefill(request("a", PROMPT, params(1)))
    (output,) = run_all(engine)[1]
    assert output.tokens[0].finish_reason is FinishReason.LENGTH
    assert engine.stats().blocks_pinned == 3
    engine.cancel("a")
    assert engine.stats().blocks_pinned == 0


def test_adopted_blocks_decode_like_local_ones() -> None:
    engine, pool = make_engine_and_pool()
    wanted = request("a", PROMPT)
    answer, end = reference(wanted)
    reservation = engine.reserve(wanted)
    assert reservation is not None
    assert (len(reservation.block_ids), reservation.num_unread_tokens) == (3, 0)
    assert engine.stats().blocks_pinned == 3
    assert not engine.has_work()
    assert engine.cached_block_hashes() == []
    transfer(pool, reservation.block_ids, PROMPT)
    engine.adopt("a", answer[0])
    answers, outputs = run_all(engine)
    assert answers.of("a") == (answer, end)
    # The carried token and the first one drawn here.
    assert [[token.index for token in output.tokens] for output in outputs[:2]] == [[0], [1]]
    assert [output.num_tokens for output in outputs[:2]] == [0, 1]
    assert all(not output.prefills_done for output in outputs)
    assert outputs[0].cache_events.stored[:2] == tuple(ChainHasher("digest", 4).chain(PROMPT))
    assert engine.stats().generated_tokens_total == 7


def test_the_next_tokens_block_is_reserved_too() -> None:
    engine = make_engine()
    reservation = engine.reserve(request("a", PROMPT[:8]))
    assert reservation is not None
    assert len(reservation.block_ids) == 2
    assert engine.stats().blocks_pinned == 3


def test_a_reservation_shares_what_is_here() -> None:
    engine, pool = make_engine_and_pool()
    engine.submit(request("a", PROMPT))
    run_all(engine)
    wanted = request("b", [*PROMPT[:8], 0, 1, 2])
    reservation = engine.reserve(wanted)
    assert reservation is not None
    assert reservation.num_unread_tokens == 8
    assert holds(pool, reservation.block_ids, PROMPT[:8])
    transfer(pool, reservation.block_ids, wanted.prompt_token_ids, skip=8)
    engine.adopt("b", reference(wanted)[0][0])
    answers, _ = run_all(engine)
    assert answers.of("b") == reference(wanted)


def test_a_first_token_may_end_an_adopted_sequence() -> None:
    stop = dataclasses.replace(params(), stop_token_ids=frozenset({9}))
    for sampling, token, reason in (
        (stop, 9, FinishReason.STOP),
        (params(1), 3, FinishReason.LENGTH),
    ):
        engine = make_engine()
        assert engine.reserve(request("a", PROMPT, sampling)) is not None
        engine.adopt("a", token)
        answers, outputs = run_all(engine)
        assert answers.of("a") == ((token,), reason)
        assert outputs[0].num_tokens == 0
        assert engine.stats().blocks_pinned == 0


def test_adopting_a_resumed_answer_goes_on_at_its_index() -> None:
    whole, end = reference(request("a", PROMPT))
    wanted = request("a", PROMPT, resumed=whole[:4])
    engine, pool = make_engine_and_pool()
    reservation = engine.reserve(wanted)
    assert reservation is not None
    transfer(pool, reservation.block_ids, [*PROMPT, *whole[:4]])
    engine.adopt("a", whole[4])
    answers, _ = run_all(engine)
    assert answers.first["a"] == 4
    assert answers.of("a") == (whole[4:], end)


def test_an_adopted_sequence_that_is_preempted_recomputes_here() -> None:
    engine, pool = make_engine_and_pool(num_blocks=8, enable_prefix_cache=False)
    first, second = request("a", [1, 2, 3], params(20)), request("b", PROMPT, params(14))
    engine.submit(first)
    engine.step()
    reservation = engine.reserve(second)
    assert reservation is not None
    transfer(pool, reservation.block_ids, PROMPT)
    engine.adopt("b", reference(second)[0][0])
    answers, _ = run_all(engine)
    assert engine.stats().preemptions_total > 0
    assert answers.of("b") == reference(second)
    assert answers.of("a")[0] == reference(first)[0][1:]


def test_no_room_is_none_and_changes_nothing() -> None:
    engine = make_engine(num_blocks=5)
    assert engine.reserve(request("a", PROMPT)) is not None
    assert engine.reserve(request("b", PROMPT)) is None
    engine.check_invariants()
    engine.abandon("a")
    assert engine.reserve(request("b", PROMPT)) is not None


def test_reservations_do_not_overtake_the_queue() -> None:
    engine = make_engine(num_blocks=8)
    engine.submit_prefill(request("held", [1] * 16))
    engine.step()
    engine.submit(request("waits", [2] * 18, params(2)))
    assert engine.reserve(request("a", [3] * 3)) is None
    engine.release("held")
    run_all(engine)
    assert engine.reserve(request("a", [3] * 3)) is not None


def test_unsettled_blocks_are_not_reused() -> None:
    engine, pool = make_engine_and_pool(num_blocks=8)
    reservation = engine.reserve(request("a", PROMPT))
    assert reservation is not None
    unsettled = frozenset(reservation.block_ids[1:])
    engine.abandon("a", unsettled)
    engine.check_invariants()
    stats = engine.stats()
    assert (stats.blocks_quarantined, stats.blocks_free, stats.blocks_pinned) == (2, 6, 0)
    wanted = request("b", [4] * 12, params(10))
    engine.submit(wanted)
    outputs = [engine.step() for _ in range(4)]
    for block in unsettled:
        pool[block] = -1.0
    _, rest = run_all(engine)
    tokens = [token.token_id for output in outputs + rest for token in output.tokens]
    assert tuple(tokens) == reference(wanted)[0]
    engine.settle(sorted(unsettled))
    engine.check_invariants()
    assert engine.stats().blocks_quarantined == 0


def test_only_blocks_to_be_read_can_be_unsettled() -> None:
    engine = make_engine()
    engine.submit(request("a", PROMPT))
    run_all(engine)
    reservation = engine.reserve(request("b", PROMPT))
    assert reservation is not None
    for wrong in (reservation.block_ids[0], 60):
        with pytest.raises(ValueError, match=f"block {wrong} is not"):
            engine.abandon("b", frozenset({wrong}))
        engine.check_invariants()
    engine.abandon("b", frozenset(reservation.block_ids[2:]))
    with pytest.raises(ValueError, match="not in quarantine"):
        engine.settle([reservation.block_ids[2], reservation.block_ids[0]])
    assert engine.stats().blocks_quarantined == 1
    engine.settle(reservation.block_ids[2:])
    assert engine.stats().blocks_quarantined == 0


def test_cancel_does_not_touch_a_reservation_but_ends_an_adopted_sequence() -> None:
    engine = make_engine()
    assert engine.reserve(request("a", PROMPT)) is not None
    engine.cancel("a")
    assert engine.stats().blocks_pinned == 3
    engine.adopt("a", 3)
    engine.abandon("a")
    assert engine.stats().blocks_pinned == 3
    engine.cancel("a")
    engine.check_invariants()
    assert engine.stats().blocks_pinned == 0
    answers, _ = run_all(engine)
    assert answers.tokens == {}


def test_adopt_refuses_what_is_not_reserved() -> None:
    engine = make_engine()
    with pytest.raises(ValueError, match="nothing is reserved for a"):
        engine.adopt("a", 1)
    assert engine.reserve(request("a", PROMPT)) is not None
    with pytest.raises(ValueError, match="token ids"):
        engine.adopt("a", 1000)
    engine.adopt("a", 1)
    with pytest.raises(ValueError, match="nothing is reserved for a"):
        engine.adopt("a", 1)


def test_adopted_duplicates_keep_one_published_block() -> None:
    engine, pool = make_engine_and_pool()
    names = ("a", "b")
    for name in names:
        reservation = engine.reserve(request(name, PROMPT))
        assert reservation is not None
        assert reservation.num_unread_tokens == 0
        transfer(pool, reservation.block_ids, PROMPT)
    first = reference(request("a", PROMPT))[0][0]
    for name in names:
        engine.adopt(name, first)
        engine.check_invariants()
    assert engine.stats().blocks_pinned == 4
    answers, _ = run_all(engine)
    for name in names:
        assert answers.of(name) == reference(request(name, PROMPT))
    assert not torch.isnan(pool).any()


def test_later_arrivals_do_not_overtake_a_reservation_that_waits() -> None:
    engine = make_engine(num_blocks=8, enable_prefix_cache=False)
    engine.submit(request("runs", [1] * 12, params(2)))
    engine.step()
    wanted = request("waits", [2] * 20)
    assert engine.reserve(wanted) is None
    engine.check_invariants()
    engine.submit(request("later", [3] * 4, params(2)))
    answers, _ = run_all(engine)
    assert set(answers.ends) == {"runs"}
    assert engine.reserve(wanted) is not None
    answers, _ = run_all(engine)
    assert set(answers.ends) == {"later"}


@pytest.mark.parametrize("cached", [True, False])
def test_a_reservation_that_is_given_up_lets_the_queue_go_on(cached: bool) -> None:
    engine = make_engine(num_blocks=8, enable_prefix_cache=cached)
    assert engine.reserve(request("has", [1] * 12)) is not None
    assert engine.reserve(request("waits", [2] * 20)) is None
    engine.submit(request("later", [3] * 4, params(2)))
    assert not engine.has_work()
    # A cancel is for what runs; the handover itself says when it gives up.
    engine.cancel("waits")
    assert not engine.has_work()
    engine.abandon("waits")
    engine.check_invariants()
    answers, _ = run_all(engine)
    assert set(answers.ends) == {"later"}


def test_bytes_that_nobody_vouches_for_are_wiped() -> None:
    """They may be NaN, which would reach whoever gets the block next even through masked attention."""
    engine, pool = make_engine_and_pool()
    reservation = engine.reserve(request("a", PROMPT))
    assert reservation is not None
    late = reservation.block_ids[1]
    pool[list(reservation.block_ids)] = torch.nan
    engine.abandon("a", frozenset({late}))
    assert pool.isnan().any(dim=1).flatten(1).any(dim=1).nonzero().flatten().tolist() == [late]
    engine.settle([late])
    assert not pool.isnan().any()
