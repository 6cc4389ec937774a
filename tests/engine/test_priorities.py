"""Strict priorities, and preemption to host memory, as the scheduler plans them."""

from __future__ import annotations

from engine.sequence import Sequence, SequenceStatus
from tests.engine.scheduler_bench import BLOCK, Bench


def test_lower_values_are_admitted_first_and_equals_by_arrival() -> None:
    bench = Bench(running=1)
    for priority in (5, 0, -3, 0):
        bench.add(2, priority=priority)
    order = []
    while bench.scheduler.waiting or bench.scheduler.running:
        arrival = bench.planned()[0][0]
        order.append(arrival)
        bench.end(bench.sequences[arrival])
    assert order == [2, 1, 3, 0]


def test_the_chunks_of_a_better_prompt_go_before_those_of_one_that_runs() -> None:
    bench = Bench(budget=8)
    bench.add(30, priority=1)
    assert bench.planned() == [(0, 8)]
    bench.add(12, priority=0)
    assert bench.planned() == [(1, 8)]
    assert bench.planned() == [(1, 4), (0, 4)]


def test_the_worst_is_preempted_and_among_equals_the_latest() -> None:
    bench = Bench(num_blocks=6)
    worst = bench.add(3, priority=2)
    first, second = bench.add(3), bench.add(3)
    preempted: list[Sequence] = []
    while len(preempted) < 2:
        bench.step()
        preempted += [s for s in bench.scheduler.waiting if s not in preempted]
    assert preempted == [worst, second]
    assert first.status is SequenceStatus.RUNNING


def test_a_better_prompt_takes_the_blocks_of_a_worse_sequence() -> None:
    bench = Bench(num_blocks=6)
    worse = bench.add(15, priority=1)
    bench.step()
    equal = bench.add(15, priority=1)
    bench.step()
    assert (worse.status, equal.status) == (SequenceStatus.RUNNING, SequenceStatus.WAITING)
    better = bench.add(15, priority=0)
    bench.step()
    assert (better.status, worse.status) == (SequenceStatus.RUNNING, SequenceStatus.WAITING)
    assert bench.scheduler.waiting == [worse, equal]


def test_a_better_prompt_takes_a_place_too_and_only_one() -> None:
    bench = Bench(running=2)
    bench.add(2, priority=1)
    bench.add(2, priority=1)
    bench.step()
    bench.add(2, priority=0)
    assert bench.planned() == [(0, 1), (2, 2)]
    assert bench.scheduler.recomputes == 1


def test_nobody_is_preempted_where_that_would_not_help() -> None:
    bench = Bench(num_blocks=9)
    held = bench.add(16, hold=True)
    bench.add(3, priority=1)
    bench.step()
    better = bench.add(23, priority=0)
    bench.step()
    assert (better.status, bench.scheduler.recomputes) == (SequenceStatus.WAITING, 0)
    bench.end(held)
    bench.step()
    assert (better.status, bench.scheduler.recomputes) == (SequenceStatus.RUNNING, 0)


def test_a_better_reservation_takes_room_and_a_worse_one_waits() -> None:
    bench = Bench(num_blocks=6)
    running = bench.add(15, priority=1)
    bench.step()
    worse = bench.new(15, priority=2)
    assert bench.scheduler.reserve(worse) is None
    better = bench.new(15, priority=0)
    assert bench.scheduler.reserve(better) == 0
    assert (running.status, worse.status) == (SequenceStatus.WAITING, SequenceStatus.ASKING)
    bench.scheduler.check_invariants()
    bench.end(better)
    assert bench.scheduler.reserve(worse) is None, "who was preempted ranks before it"
    bench.step()
    assert running.status is SequenceStatus.RUNNING


def test_a_worse_prompt_does_not_overtake_a_better_reservation() -> None:
    bench = Bench(num_blocks=6)
    held = bench.add(20, hold=True)
    bench.step()
    asking = bench.new(15)
    assert bench.scheduler.reserve(asking) is None
    bench.add(2, priority=1)
    assert bench.planned() == []
    bench.add(2, priority=-1)
    assert bench.planned() == [(3, 2)]
    bench.end(held)
    assert bench.planned() == [(3, 1)]
    assert bench.scheduler.reserve(asking) == 0


def preempted(bench: Bench) -> Sequence:
    """Two sequences decode until one has to go; returns that one."""
    bench.add(3)
    second = bench.add(3)
    bench.step()
    while second.status is not SequenceStatus.WAITING:
        bench.step()
    return second


def test_swapped_kv_comes_back_with_the_sequence() -> None:
    bench = Bench(num_blocks=4, swap=8)
    second = preempted(bench)
    assert (bench.scheduler.swaps, bench.scheduler.recomputes) == (1, 0)
    computed = second.num_tokens - 1
    assert second.swapped is not None
    assert second.swapped.num_tokens == computed
    bench.end(bench.sequences[0])
    assert bench.planned() == [(1, 1)]
    assert bench.host.loaded == [(list(bench.host.saved[0][1]), second.blocks[: -(-computed // BLOCK)])]
    assert (second.num_computed, bench.swap.used) == (computed + 1, 0)


def test_a_swapped_sequence_that_ends_lets_its_slots_go() -> None:
    bench = Bench(num_blocks=4, swap=8)
    second = preempted(bench)
    assert bench.swap.used > 0
    bench.end(second)
    assert bench.swap.used == 0
    bench.step()


def test_without_room_there_the_context_is_computed_again() -> None:
    bench = Bench(num_blocks=4, swap=1)
    second = preempted(bench)
    assert (bench.scheduler.swaps, bench.scheduler.recomputes, second.swapped) == (0, 1, None)
    bench.end(bench.sequences[0])
    assert bench.planned() == [(1, second.num_tokens - 1)]


def test_what_the_prefix_cache_still_holds_is_not_copied_back() -> None:
    bench = Bench(num_blocks=6, swap=8, cache=True)
    bench.add(7)
    second = bench.add(7)
    bench.step()
    while second.status is not SequenceStatus.WAITING:
        bench.step()
    kept = second.swapped
    assert kept is not None
    bench.end(bench.sequences[0])
    bench.step()
    assert second.status is SequenceStatus.RUNNING
    loaded = sum(len(slots) for slots, _ in bench.host.loaded)
    assert loaded < len(kept.slots)
    assert second.num_computed == second.num_tokens - 1
