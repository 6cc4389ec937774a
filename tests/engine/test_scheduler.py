from __future__ import annotations

import pytest

from engine.prefill_budget import PrefillBudget
from engine.scheduler import Scheduler
from engine.sequence import Sequence, SequenceStatus
from tests.engine.scheduler_bench import Bench


def test_decodes_first_then_chunks_under_the_budget() -> None:
    bench = Bench(budget=10, chunk=6)
    bench.add(3)
    assert bench.planned() == [(0, 3)]
    bench.add(14)
    bench.add(9)
    assert bench.planned() == [(0, 1), (1, 6), (2, 3)]
    assert bench.planned() == [(0, 1), (1, 6), (2, 3)]
    assert bench.planned() == [(0, 1), (1, 2), (2, 3)]
    assert bench.planned() == [(0, 1), (1, 1), (2, 1)]


def test_the_budget_bounds_decodes_too() -> None:
    bench = Bench(budget=2, chunk=2)
    for _ in range(3):
        bench.add(1)
    assert bench.planned() == [(0, 1), (1, 1)]
    assert bench.planned() == [(0, 1), (1, 1)]
    bench.end(bench.sequences[0])
    assert bench.planned() == [(1, 1), (2, 1)]


def test_contexts_make_progress_beside_drafts_that_would_fill_every_step() -> None:
    bench = Bench(budget=8, drafts=20)
    bench.add(1)
    assert bench.planned() == [(0, 1)]
    bench.add(9)
    # Half of what the decode leaves is the draft's, and what the context does not need.
    assert bench.planned() == [(0, 1 + 3), (1, 4)]
    assert bench.planned() == [(0, 1 + 3), (1, 4)]
    assert bench.planned() == [(0, 1 + 6), (1, 1)]
    assert bench.planned() == [(0, 1 + 6), (1, 1)]


def test_the_last_token_of_a_step_is_a_contexts() -> None:
    bench = Bench(budget=2, drafts=20)
    bench.add(1)
    bench.planned()
    bench.add(3)
    assert [bench.planned() for _ in range(3)] == [[(0, 1), (1, 1)]] * 3


def test_a_context_has_its_blocks_before_drafts() -> None:
    bench = Bench(num_blocks=6, drafts=20)
    bench.add(3)
    bench.planned()
    # Four blocks for it, one that the decode may grow by, one that the decode has: none for drafts.
    bench.add(15)
    assert bench.planned() == [(0, 1), (1, 15)]


def test_admission_is_first_come_first_served_up_to_max_running() -> None:
    bench = Bench(running=2)
    for _ in range(4):
        bench.add(2)
    assert bench.planned() == [(0, 2), (1, 2)]
    assert bench.planned() == [(0, 1), (1, 1)]
    bench.end(bench.sequences[0])
    assert bench.planned() == [(1, 1), (2, 2)]


def test_a_large_head_is_not_overtaken() -> None:
    bench = Bench(num_blocks=6)
    bench.add(15)
    bench.planned()
    bench.add(12)
    bench.add(1)
    assert bench.planned() == [(0, 1)]
    bench.end(bench.sequences[0])
    assert bench.planned() == [(1, 12), (2, 1)]


def test_admission_leaves_a_block_for_each_sequence_that_grows() -> None:
    bench = Bench(num_blocks=6)
    bench.add(3)
    bench.planned()
    bench.add(19)
    assert bench.planned() == [(0, 1)]
    bench.end(bench.sequences[1])
    bench.add(11)
    assert bench.planned() == [(0, 1), (2, 11)]


def test_the_latest_arrival_is_preempted_and_comes_back_with_its_tokens() -> None:
    bench = Bench(num_blocks=4)
    first, second = bench.add(3), bench.add(3)
    while bench.scheduler.recomputes == 0:
        bench.step()
    assert first.status is SequenceStatus.RUNNING
    assert second.status is SequenceStatus.WAITING
    assert (second.blocks, second.num_computed) == ([], 0)
    tokens = list(second.token_ids)
    assert len(tokens) > 4
    bench.end(first)
    assert bench.planned() == [(1, len(tokens))]
    assert second.token_ids[:-1] == tokens


def test_the_oldest_is_never_preempted() -> None:
    bench = Bench(num_blocks=5)
    oldest = bench.add(3)
    for _ in range(3):
        bench.add(3)
    while oldest.num_tokens < 20:
        bench.step()
        assert oldest.status is SequenceStatus.RUNNING
    assert bench.scheduler.recomputes >= 1


def test_a_prefill_may_be_preempted_but_not_a_held_one() -> None:
    for hold in (False, True):
        bench = Bench(num_blocks=8, chunk=1)
        decode = bench.add(2)
        while decode.num_tokens < 4:
            bench.step()
        late = bench.add(24 if hold else 20, hold=hold)
        while bench.scheduler.recomputes == 0 and not late.context_done:
            bench.step()
        if hold:
            assert late.status is not SequenceStatus.WAITING
            assert decode.status is SequenceStatus.WAITING
        else:
            assert late.status is SequenceStatus.WAITING
            assert decode.status is SequenceStatus.RUNNING


def test_a_decode_that_preempts_itself_does_not_stop_the_rest() -> None:
    bench = Bench(num_blocks=6, chunk=3)
    decode = bench.add(3)
    bench.step()
    bench.add(16, hold=True)
    for _ in range(5):
        assert bench.planned() == [(0, 1), (1, 3)]
    assert bench.planned() == [(1, 1)]
    assert decode.status is SequenceStatus.WAITING


def test_adopted_sequences_beyond_max_running_take_turns_by_arrival() -> None:
    bench = Bench(running=2)
    for _ in range(3):
        sequence = bench.new(3)
        assert bench.scheduler.reserve(sequence) == 0
        assert sequence.status is SequenceStatus.RESERVED
        sequence.num_computed = 3
        sequence.context_done = True
        sequence.token_ids.append(1)
        bench.scheduler.run(sequence)
    assert bench.planned() == [(0, 1), (1, 1)]
    bench.end(bench.sequences[1])
    assert bench.planned() == [(0, 1), (2, 1)]


def test_a_fully_cached_context_runs_its_last_token_alone() -> None:
    bench = Bench(cache=True)
    first = bench.add(8, hold=True)
    bench.step()
    twin = Sequence(first.request, 7, hold=True, submitted_s=0.0)
    bench.sequences.append(twin)
    bench.scheduler.add(twin)
    batch = bench.scheduler.schedule(2.5)
    assert (batch.sequences, batch.counts) == ([twin], [1])
    assert twin.recompute_last
    assert (twin.num_computed, twin.cached_tokens, twin.admitted_s) == (7, 7, 2.5)
    assert twin.blocks == first.blocks


def test_a_queue_that_cannot_move_is_no_work() -> None:
    bench = Bench(num_blocks=4)
    held = bench.add(12, hold=True)
    bench.step()
    bench.add(8)
    assert not bench.scheduler.can_schedule()
    assert bench.planned() == []
    bench.end(held)
    assert bench.scheduler.can_schedule()


@pytest.mark.parametrize("name", ["max_batched_tokens", "max_running", "prefill_chunk"])
def test_limits_must_be_positive(name: str) -> None:
    limits = {"max_batched_tokens": 1, "max_running": 1, "prefill_chunk": 1, name: 0}
    bench = Bench()
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        Scheduler(bench.blocks, PrefillBudget(bench.cost, 0.0, 0), bench.swap, **limits)


def test_invariants_name_the_fault() -> None:
    bench = Bench()
    bench.add(3)
    bench.add(3)
    bench.scheduler.waiting.reverse()
    with pytest.raises(AssertionError, match="WAITING is in order of rank"):
        bench.scheduler.check_invariants()
    bench.scheduler.waiting.reverse()
    bench.sequences[0].status = SequenceStatus.RUNNING
    with pytest.raises(AssertionError, match="those in WAITING have that status"):
        bench.scheduler.check_invariants()
