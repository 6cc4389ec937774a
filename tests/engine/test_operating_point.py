"""What the adaptive operating point makes of synthetic deployments, beside each fixed number of drafts."""

from __future__ import annotations

import random
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import EngineRequest, SamplingParams
from engine.sequence import Sequence
from engine.speculation.acceptance import ChainAcceptance
from engine.speculation.operating_point import AdaptivePlanner
from engine.speculation.outlook import Outlook
from engine.speculation.planner import DraftOutcome, FixedPlanner, OffReason, PassCost
from tests.engine.speculation_bench import (
    ANSWER,
    BAR,
    Text,
    World,
    answers_for,
    bent,
    flat,
    linear,
    planner_of,
    require_fast,
    run,
    stepped,
    unlike,
)

TEXT = Text(lambda place: 0.5)
SAYS = (None, lambda chance: chance, lambda chance: 0.0, lambda chance: 1.0)

COSTS = {cost.__name__: cost for cost in (flat, linear, bent, stepped)}


def runs(number: int) -> Text:
    """Easy and hard stretches of about six tokens."""
    randomness = random.Random(number)
    chances: list[float] = []
    while len(chances) < 2 * ANSWER:
        chances += [randomness.choice((0.95, 0.3))] * (1 + int(randomness.expovariate(0.2)))
    return Text(lambda place: chances[place])


TEXTS = {
    "never right": lambda number: Text(lambda place: 0.0),
    "seldom right": lambda number: Text(lambda place: 0.3),
    "often right": lambda number: Text(lambda place: 0.6),
    "mostly right": lambda number: Text(lambda place: 0.9),
    "worse further on": lambda number: Text(lambda place: 0.75, decay=0.8),
    "requests differ": lambda number: Text(lambda place: (0.0, 0.9, 0.5, 0.8)[number % 4]),
    "in runs": runs,
    "times change": lambda number: Text(lambda place: 0.9 if number // 16 % 2 else 0.1),
}


@pytest.mark.parametrize("batch", [1, 4, 16, 32])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("text", ["never right", "often right", "mostly right"])
def test_never_slower_than_none_or_the_best_fixed_number(text: str, cost: str, batch: int) -> None:
    require_fast(World(COSTS[cost], TEXTS[text], lambda tokens: batch), answers_for(batch))


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("text", ["seldom right", "worse further on", "requests differ", "times change"])
def test_texts_that_differ_and_change(text: str, batch: int) -> None:
    require_fast(
        World(bent, TEXTS[text], lambda tokens: batch), answers_for(batch) + 16 * (text == "times change")
    )


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("cost", ["flat", "stepped"])
def test_texts_that_are_easy_in_runs(cost: str, batch: int) -> None:
    """Many drafts use up in one pass what few leave to the next."""
    require_fast(World(COSTS[cost], TEXTS["in runs"], lambda tokens: batch), 2 * answers_for(batch))


def test_requests_that_differ_get_what_each_is_worth() -> None:
    """No fixed number can do that: the best one loses."""
    world = World(flat, TEXTS["requests differ"], lambda tokens: 1)
    adaptive = run(world, planner_of(world), 24)
    assert adaptive.rate > 1.08 * max(run(world, FixedPlanner(count), 24).rate for count in range(7))


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("cost", ["flat", "bent"])
def test_drafters_that_seldom_have_anything(cost: str, batch: int) -> None:
    world = World(
        COSTS[cost],
        lambda number: Text(lambda place: 0.75, found=0.15),
        lambda tokens: batch,
        draft_s=0.00003,
    )
    require_fast(world, answers_for(batch))


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("cost", ["flat", "bent", "stepped"])
def test_drafters_that_know_when_to_end(cost: str, batch: int) -> None:
    """Drafts that come are better than those that were asked for."""

    def unsure(number: int) -> Text:
        chances = unlike(number)
        return Text(lambda place: chances[place], least=0.08)

    require_fast(World(COSTS[cost], unsure, lambda tokens: batch, draft_s=0.0004), answers_for(batch))


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("left_s", [0.001, 0.002])
def test_drafters_that_catch_up_on_steps_without_drafts(batch: int, left_s: float) -> None:
    """What a lone step with drafts takes, after text that was hard, is not what they take."""
    require_fast(World(flat, TEXTS["times change"], lambda tokens: batch, left_s=left_s), answers_for(batch))


@pytest.mark.parametrize("idle_s", [0.0, 0.001])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_noise_and_hiccups(noise: float, idle_s: float) -> None:
    world = World(
        bent, TEXTS["often right"], lambda tokens: 4, noise=noise, hiccups=0.2 * noise, idle_s=idle_s
    )
    require_fast(world, 60)


@pytest.mark.parametrize("times", [(2, 11, 17, 16, 4, 4, 13, 14, 15, 20, 15, 20), (1,) + 11 * (20,)])
def test_a_calibration_on_a_busy_machine_does_not_keep_drafts_away(times: tuple[int, ...]) -> None:
    """As it was measured while two workers started side by side: one answer later nothing of that is left."""
    world = World(flat, TEXTS["often right"], lambda tokens: 1)
    calibration = [(tokens, s * slow) for (tokens, s), slow in zip(world.calibration, times, strict=True)]
    adaptive = run(world, AdaptivePlanner(calibration, world.most), 1)
    assert adaptive.rate > 1.4 * run(world, FixedPlanner(0), 1).rate


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("factor", [0.15, 0.4, 3.0, 7.0])
def test_a_calibration_that_is_far_off(factor: float, batch: int) -> None:
    world = World(flat, TEXTS["seldom right"], lambda tokens: batch, draft_s=0.004)
    answers = 2 * answers_for(batch)
    fixed = max(run(world, FixedPlanner(count), answers).rate for count in range(4))
    calibration = [(tokens, factor * seconds) for tokens, seconds in world.calibration]
    assert run(world, AdaptivePlanner(calibration, world.most), answers).rate > BAR * fixed


class Disturbed(AdaptivePlanner):
    """Drafts of the first steps take 0.1 s longer, as where others start on the same machine."""

    steps = 0
    lost_s = 0.0

    def observe(self, cost: PassCost, outcomes: SequenceOf[DraftOutcome]) -> None:
        """As `DraftPlanner.observe`."""
        self.steps += 1
        if self.steps <= 40 and any(outcome.asked for outcome in outcomes):
            self.lost_s += 0.1
            cost = replace(cost, draft_s=cost.draft_s + 0.1)
        super().observe(cost, outcomes)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_disturbed_beginning_does_not_keep_drafts_away(batch: int) -> None:
    world = World(flat, TEXTS["often right"], lambda tokens: batch)
    answers = 2 * answers_for(batch)
    best = max(run(world, FixedPlanner(count), answers).rate for count in range(4))
    planner = Disturbed(world.calibration, world.most)
    assert run(world, planner, answers).rate > 0.9 * best
    assert planner.lost_s > 0.2


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("cost", COSTS)
def test_trees(cost: str, batch: int) -> None:
    world = World(
        COSTS[cost], lambda number: Text(lambda place: 0.6), lambda tokens: batch, most=15, tree=True
    )
    require_fast(world, 2 * answers_for(batch), (0, 1, 2, 3, 4, 6, 9, 13, 15))


@pytest.mark.parametrize("cost", ["flat", "bent", "stepped"])
def test_batches_that_change_quickly(cost: str) -> None:
    sizes = random.Random(5).choices((1, 2, 3, 5, 7, 8, 12, 16, 24), k=4000)
    world = World(COSTS[cost], TEXTS["often right"], lambda tokens: sizes[tokens // 100])
    adaptive = require_fast(world, 80)
    # It does not change its mind from step to step: of steps of one size that follow each other few differ.
    changes = steps = 0
    last: dict[int, int] = {}
    for counts in adaptive.counts[len(adaptive.counts) // 2 :]:
        most = max(counts)
        changes += last.get(len(counts), most) != most
        steps += 1
        last[len(counts)] = most
    assert changes < 0.2 * steps


def test_a_loaded_server_drafts_next_to_nothing_where_that_is_slower() -> None:
    world = World(linear, TEXTS["often right"], lambda tokens: 32, noise=0.0, hiccups=0.0)
    planner = planner_of(world)
    result = run(world, planner, 200)
    assert result.rate > 0.99 * run(world, FixedPlanner(0), 200).rate
    assert planner.off[OffReason.BATCH] > 0.9 * sum(map(len, result.counts))


def test_the_same_measurements_give_the_same_choices() -> None:
    world = World(bent, TEXTS["requests differ"], lambda tokens: 1 + tokens // 500 % 9)
    assert run(world, planner_of(world), 20).counts == run(world, planner_of(world), 20).counts


def sequence_of(arrival: int, left: int) -> Sequence:
    params = SamplingParams(0.0, 1.0, 0, 0, 0, max_tokens=ANSWER)
    sequence = Sequence(EngineRequest(str(arrival), (1,), params), arrival, False, 0.0)
    sequence.token_ids += [0] * (ANSWER - left)
    return sequence


def test_no_more_drafts_than_tokens_that_are_left() -> None:
    planner = AdaptivePlanner([(1, 0.02), (64, 0.02)], 8)
    sequences = [sequence_of(0, left=1), sequence_of(1, left=3), sequence_of(2, left=100)]
    assert planner.wanted(sequences) == [0, 2, 8]
    assert planner.off[OffReason.ENDING] == 1
    assert planner.wanted(sequences[:1]) == [0]
    assert planner.wanted([]) == []


def test_no_more_drafts_than_a_request_may_have() -> None:
    planner = AdaptivePlanner([(1, 0.02), (64, 0.02)], 8)
    sequences = [sequence_of(arrival, left=100) for arrival in range(3)]
    sequences[0].max_drafts, sequences[1].max_drafts = 0, 3
    assert planner.wanted(sequences) == [0, 3, 8]
    assert planner.wanted(sequences[:1]) == [0]
    assert not any(planner.off.values()), "who asked for none was not left out"
    assert FixedPlanner(5).wanted(sequences) == [0, 3, 5]


def test_what_one_drafter_has_shown_says_nothing_of_another() -> None:
    """Requests side by side, half of them with drafts that are always wrong; then new ones of both kinds."""
    outlook = Outlook(lambda: ChainAcceptance(4))
    good, bad = object(), object()

    def pair(number: int) -> list[Sequence]:
        sequences = [sequence_of(2 * number, left=100), sequence_of(2 * number + 1, left=100)]
        for sequence, drafter in zip(sequences, (good, bad), strict=True):
            sequence.drafter = drafter  # type: ignore[assignment] # told apart alone
        return sequences

    for number in range(40):
        right, wrong = pair(number)
        outlook.found(right, 4, 4)
        outlook.found(wrong, 4, 0)
        outlook.verified(right, 4, 4, 4)
        outlook.verified(wrong, 4, 0, 4)
        outlook.step()
    gains = outlook.gains([*pair(100), *pair(101)], 4)
    assert (gains[::2] > 0.8).all()
    assert (gains[1::2] < 0.2).all()
    chances = outlook.chances([*pair(100), *pair(101)], 4)[:, 0]
    assert (chances[::2] > 0.9).all()
    assert (chances[1::2] < 0.3).all()
    alone = outlook.gains(pair(100)[1:], 4)
    assert (alone == gains[1]).all()


def test_drafts_that_were_found_are_cut_where_a_tile_ends() -> None:
    """Nine requests, drafts for eight of them: with all of these a pass would take a tile more."""
    planner = AdaptivePlanner([(1, 0.02), (16, 0.02), (17, 0.06), (128, 0.06)], 1)
    sequences = [sequence_of(arrival, left=100) for arrival in range(9)]
    drafted = [1] * 8 + [0]
    planner.wanted(sequences)
    kept = planner.kept(sequences, [1] * 9, [TEXT.drafts(0, count) for count in drafted])
    assert sum(kept) == 7
    assert all(count <= there for count, there in zip(kept, drafted, strict=True))


def test_requests_that_ended_are_forgotten() -> None:
    """Those too that came and went between two choices."""
    planner = AdaptivePlanner([(1, 0.02), (64, 0.02)], 4)
    for step in range(12_000):
        sequences = [sequence_of(0, left=100), sequence_of(1 + step, left=100)]
        asked = planner.wanted(sequences)
        kept = planner.kept(sequences, asked, [TEXT.drafts(0, count) for count in asked])
        outcomes = [
            DraftOutcome(sequence, room, TEXT.drafts(0, count), (1,) * min(1, count))
            for sequence, room, count in zip(sequences, asked, kept, strict=True)
        ]
        planner.observe(PassCost(2, 2 + sum(kept), 0, 0.02, 0.001), outcomes)
    known = [planner._requests]
    for learnt in planner._outlook._learnt.values():
        known += [learnt.acceptance._own, learnt.availability._own]
    assert all(0 < len(requests) < 5_000 for requests in known)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 draft"):
        AdaptivePlanner([(1, 0.1)], 0)
    for calibration in ([], [(0, 0.1)], [(1, 0.0)]):
        with pytest.raises(ValueError, match="calibration"):
            AdaptivePlanner(calibration, 1)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    branching=st.booleans(),
    most=st.integers(1, 20),
    calibration=st.lists(st.tuples(st.integers(1, 200), st.floats(1e-9, 10.0)), min_size=1, max_size=4),
)
def test_whatever_is_measured_choices_keep_their_bounds(
    data: st.DataObject, branching: bool, most: int, calibration: list[tuple[int, float]]
) -> None:
    planner = AdaptivePlanner(calibration, most, branching=branching)
    for step in range(data.draw(st.integers(1, 12))):
        sequences = [
            sequence_of(100 * step % 300 + number, left=data.draw(st.integers(1, 30)))
            for number in range(data.draw(st.integers(0, 5)))
        ]
        wanted = planner.wanted(sequences)
        assert len(wanted) == len(sequences)
        left = [ANSWER - sequence.next_index for sequence in sequences]
        assert all(0 <= count <= min(most, room - 1) for count, room in zip(wanted, left, strict=True))
        asked = [data.draw(st.integers(0, count)) for count in wanted]
        drafted = [data.draw(st.integers(0, count)) for count in asked]
        says = data.draw(st.sampled_from(SAYS))
        trees = [replace(TEXT, says=says).drafts(0, count, branching=branching) for count in drafted]
        kept = planner.kept(sequences, asked, trees)
        assert all(0 <= count <= there for count, there in zip(kept, drafted, strict=True))
        outcomes = [
            DraftOutcome(
                sequence, room, tree and tree.first(count), range(1, 1 + data.draw(st.integers(0, count)))
            )
            for sequence, room, tree, count in zip(sequences, asked, trees, kept, strict=True)
        ]
        times = st.floats(0.0, 1e6)
        planner.observe(
            PassCost(
                decodes=len(sequences),
                nodes=len(sequences) + sum(kept),
                prompt_tokens=data.draw(st.integers(0, 3)),
                target_s=data.draw(times),
                draft_s=data.draw(times),
            ),
            outcomes,
        )
