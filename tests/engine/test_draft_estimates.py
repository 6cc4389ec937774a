"""The estimates behind the operating point but for costs, each by itself."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bands import band_of, band_up_to
from engine.speculation.acceptance import AcceptanceModel, ChainAcceptance, Floats
from engine.speculation.allocation import Allocator
from engine.speculation.availability import Availability
from engine.speculation.probing import BUDGET, Budget, Timer
from engine.speculation.selection import worth_verifying
from engine.speculation.tree_acceptance import TreeAcceptance, tree_sizes


@given(st.integers(1, 100_000))
def test_bands_hold_their_numbers_and_are_narrow(count: int) -> None:
    assert band_of(count) <= count <= band_up_to(count)
    assert count - band_of(count) < max(1, count / 8 + 1)
    assert band_up_to(count) - count < max(1, count / 8 + 1)
    assert band_of(band_of(count)) == band_of(count)
    assert band_up_to(band_up_to(count)) == band_up_to(count)


@given(size=st.sampled_from([8, 16, 32, 64, 128]), beyond=st.integers(1, 8))
def test_bands_end_where_tiles_do(size: int, beyond: int) -> None:
    assert band_up_to(size) == size
    assert band_up_to(size + beyond) > size


def test_each_position_has_its_own_rate_and_each_request_its_own() -> None:
    randomness = random.Random(0)
    model = ChainAcceptance(3)
    chances = {0: 0.5, 1: 0.9}
    means = np.zeros(3)
    for step in range(600):
        for request, chance in chances.items():
            right = 0
            while right < 3 and randomness.random() < chance * 0.9**right:
                right += 1
            model.observe(request, 3, right, 3)
        model.step()
        # One request's estimate moves with its latest tests: what counts is what it moves about.
        means += model.gains([0, 1, 2], 3)[:, 0] / 300 * (step >= 300)
    poor, good, fresh = means
    assert fresh == pytest.approx(0.7, abs=0.05)
    assert poor < fresh - 0.1
    assert good > fresh + 0.05
    model.forget(1)
    assert model.gains([1], 3) == pytest.approx(model.gains([2], 3))


@pytest.mark.parametrize("asked", [3, 4])
def test_what_fewer_drafts_would_bring_where_easy_tokens_come_in_runs(asked: int) -> None:
    """More than the first of many: they leave more of a run to the next pass."""
    randomness = random.Random(0)
    chances: list[float] = []
    while len(chances) < 60_000:
        chances += [randomness.uniform(0.1, 0.98)] * (1 + int(randomness.expovariate(0.2)))
    easy = [randomness.random() < chance for chance in chances]
    model = ChainAcceptance(asked)
    promised: list[Floats] = []

    def right_drafts(drafts: int, *, learning: bool = False) -> Floats:
        """Of a pass on average, up to each position; the model says every now and then what it thinks."""
        place = passes = 0
        by_position = np.zeros(drafts)
        while place < len(easy) - drafts:
            right = next((n for n in range(drafts) if not easy[place + n]), drafts)
            by_position[:right] += 1
            if learning:
                model.observe(passes // 50, drafts, right, drafts)
                model.step()
                if passes % 100 == 0:
                    promised.append(model.gains([-1], asked)[0].cumsum())
            place, passes = place + right + 1, passes + 1
        return by_position.cumsum() / passes

    seen = right_drafts(asked, learning=True)
    thought = np.mean(promised[10:], axis=0)
    assert thought[-1] == pytest.approx(seen[-1], rel=0.03)
    for fewer in range(1, asked):
        true = right_drafts(fewer)[-1]
        assert seen[fewer - 1] < thought[fewer - 1] < true


def test_a_drafter_that_has_no_more_to_say_leaves_its_run_to_the_next_pass() -> None:
    """It ends half of its chains; one draft a pass, sometimes two, shows what two would bring."""
    randomness = random.Random(0)
    chances: list[float] = []
    while len(chances) < 60_000:
        chances += [randomness.choice((0.35, 0.9))] * (1 + int(randomness.expovariate(0.15)))
    easy = [randomness.random() < chance for chance in chances]
    ends = [randomness.random() < 0.5 for _ in chances]
    model = ChainAcceptance(2)
    promised: list[Floats] = []

    def right_drafts(rarely: int, *, learning: bool = False) -> float:
        """Of a pass with two, on average; all but one of `rarely` passes have one."""
        place = passes = of_two = two = 0
        while place < len(easy) - 2:
            asked = 2 if passes % rarely == 0 else 1
            drafted = 1 if ends[place] else asked
            right = next((n for n in range(drafted) if not easy[place + n]), drafted)
            of_two, two = of_two + right * (asked == 2), two + (asked == 2)
            if learning:
                model.observe(passes // 50, drafted, right, asked)
                model.step()
                if passes % 100 == 0:
                    promised.append(model.gains([-1], 2)[0].cumsum())
            place, passes = place + right + 1, passes + 1
        return of_two / two

    right_drafts(8, learning=True)
    assert np.mean(promised[10:], axis=0)[-1] == pytest.approx(right_drafts(1), rel=0.04)


def test_only_what_lasts_of_a_request_counts() -> None:
    """Half of the requests are better than the others; of the rest each is good for a while, then bad."""
    randomness = random.Random(0)
    lasting, passing = ChainAcceptance(1), ChainAcceptance(1)
    for step in range(4000):
        for request in range(4):
            stretch = random.Random(f"{request} {step // 4}").random() < 0.5
            lasting.observe(request, 1, int(randomness.random() < (0.8 if request % 2 else 0.4)), 1)
            passing.observe(request, 1, int(randomness.random() < (0.8 if stretch else 0.4)), 1)
        lasting.step()
        passing.step()
    apart = np.abs(np.diff(lasting.gains([0, 1], 1)[:, 0]))
    assert apart > 0.25
    assert np.ptp(passing.gains([0, 1, 2, 3], 1)) < 0.6 * apart


def test_who_is_slow_gets_the_draft_that_adds_as_much() -> None:
    """Two requests with one draft more to give: a token is worth more to the one that has fewer a pass."""
    gains = np.array([[0.9, 0.4], [0.4, 0.1]])
    pass_s, draft_s = np.array([1.0, 1.1, 1.2, 9.0, 9.0]), np.zeros(3)
    allocator = Allocator(gains, np.ones((2, 2)), [2, 2], pass_s, draft_s)
    assert allocator.best([2])[2].counts == (1, 1)


@pytest.mark.parametrize("model", [ChainAcceptance(15), TreeAcceptance(15)])
@settings(max_examples=50)
@given(data=st.data())
def test_further_drafts_never_add_more(data: st.DataObject, model: AcceptanceModel) -> None:
    for _ in range(data.draw(st.integers(0, 20))):
        drafted = data.draw(st.integers(1, 15))
        asked = data.draw(st.integers(drafted, 15))
        model.observe(data.draw(st.integers(0, 3)), drafted, data.draw(st.integers(0, drafted)), asked)
        model.step()
    gains = model.gains([0, 1, 9], 15)
    assert (gains > 0).all()
    assert (np.diff(gains, axis=1) <= 1e-12).all()
    assert (model.gains([0, 1, 9], 15, sigmas=1.0).sum(axis=1) >= gains.sum(axis=1) - 1e-9).all()


def test_a_tree_holds_what_it_was_seen_to_hold() -> None:
    model = TreeAcceptance(13)
    assert tree_sizes(13) == (1, 2, 3, 4, 6, 9, 13)
    for step in range(400):
        for size, right in ((2, 0.8), (13, 2.0)):
            model.observe(size, size, int(right) + (step % 10 < 10 * (right % 1)), size)
        model.step()
    gains = model.gains([99], 13)[0]
    assert gains[:2].sum() == pytest.approx(0.8, rel=0.1)
    assert gains.sum() == pytest.approx(2.0, rel=0.1)


def test_chances_of_a_request_that_finds_nothing_fall() -> None:
    model = Availability()
    for _ in range(40):
        model.observe(0, 4, 0)
        model.observe(1, 4, 4)
        model.step()
    never, always, fresh = model.chances([0, 1, 2], 1)[:, 0]
    assert never < 0.15 < 0.4 < fresh < 0.7 < always
    model.forget(0)
    assert model.chances([0], 1)[0, 0] == pytest.approx(fresh)


def test_chances_of_later_drafts_are_those_of_drafters_that_end_early() -> None:
    model = Availability()
    for _ in range(100):
        model.observe(0, 4, 2)
        model.observe(0, 1, 1)
        model.step()
    chances = model.chances([0], 5)[0]
    assert (chances[:2] > 0.95).all()
    assert (chances[2:4] < 0.15).all()
    # Nobody has asked for a fifth; it comes no more often than the fourth.
    assert chances[4] == chances[3]


@settings(max_examples=200)
@given(data=st.data(), requests=st.integers(1, 3), most=st.integers(1, 3))
def test_no_other_allocation_is_faster(data: st.DataObject, requests: int, most: int) -> None:
    share = st.floats(0.05, 1.0)
    gains = np.cumprod([[data.draw(share) for _ in range(most)] for _ in range(requests)], axis=1)
    limits = [data.draw(st.integers(0, most)) for _ in range(requests)]
    pass_s = np.cumsum([data.draw(st.floats(1e-3, 1.0)) for _ in range(requests * most + 1)])
    draft_s = np.cumsum([data.draw(st.floats(0.0, 0.5)) for _ in range(most + 1)])
    allocator = Allocator(gains, np.ones((requests, most)), limits, pass_s, draft_s)

    def rate(counts: tuple[int, ...]) -> float:
        per_pass = [1 + gains[index, :count].sum() for index, count in enumerate(counts)]
        return requests * statistics.geometric_mean(per_pass) / (pass_s[sum(counts)] + draft_s[max(counts)])

    ways = allocator.best(list(range(1, most + 1)))
    possible = list(itertools.product(*(range(limit + 1) for limit in limits)))
    assert bool(ways) == any(any(counts) for counts in possible)
    if not ways:
        return
    fastest = max(rate(counts) for counts in possible if any(counts))
    found = max(ways.values(), key=lambda way: way.rate)
    assert all(count <= limit for count, limit in zip(found.counts, limits, strict=True))
    assert rate(found.counts) >= 0.997 * fastest
    assert allocator.expected(found.counts).rate == pytest.approx(rate(found.counts))
    assert allocator.none().rate == pytest.approx(rate((0,) * requests))


@settings(max_examples=200)
@given(data=st.data(), requests=st.integers(1, 3), most=st.integers(1, 3))
def test_of_drafts_that_are_there_no_others_are_better_verified(
    data: st.DataObject, requests: int, most: int
) -> None:
    share = st.floats(0.05, 1.0)
    found = [data.draw(st.integers(0, most)) for _ in range(requests)]
    chances = [np.cumprod([data.draw(share) for _ in range(count)]).tolist() for count in found]
    forced = [data.draw(st.integers(0, count)) for count in found]
    pass_s = np.cumsum([data.draw(st.floats(1e-3, 1.0)) for _ in range(requests * most + 1)])
    step_s = data.draw(st.floats(0.1, 5.0))
    per_pass = [data.draw(st.floats(1.0, 4.0)) for _ in range(requests)]

    def worth(counts: Sequence[int]) -> float:
        """Passes that are saved, less what could be made in the time that it takes."""
        rows = zip(chances, counts, per_pass, strict=True)
        saved = sum(sum(row[:count]) / tokens for row, count, tokens in rows)
        return saved - float(pass_s[sum(counts)]) * requests / step_s

    counts = worth_verifying(chances, per_pass, forced, pass_s, step_s)
    choices = [range(least, there + 1) for least, there in zip(forced, found, strict=True)]
    assert all(count in choice for count, choice in zip(counts, choices, strict=True))
    assert worth(counts) == pytest.approx(max(map(worth, itertools.product(*choices))))


def test_drafts_that_seldom_come_cost_as_seldom() -> None:
    """What nearly never comes is worth asking for even where a pass with it is slow."""
    gains, limits = np.array([[0.9]]), [1]
    pass_s, draft_s = np.array([1.0, 1.5]), np.zeros(2)
    way = Allocator(gains, np.array([[0.1]]), limits, pass_s, draft_s).best([1])[1]
    assert way.seconds == pytest.approx(1.05)
    assert way.rate == pytest.approx(1.09 / 1.05)


@given(data=st.data(), most=st.integers(1, 5))
def test_what_drafts_of_one_request_cost_is_what_those_cost_that_come(data: st.DataObject, most: int) -> None:
    """On average of how many come: neither all that are asked for, nor what their mean number would cost."""
    unit = st.floats(0.01, 1.0)
    chances = np.cumprod([[data.draw(unit) for _ in range(most)]], axis=1)
    pass_s = np.array([data.draw(st.floats(0.1, 10.0)) for _ in range(most + 1)])
    way = Allocator(np.full((1, most), 0.1), chances, [most], pass_s, np.zeros(most + 1)).expected((most,))
    exactly = -np.diff(np.concatenate([[1.0], chances[0], [0.0]]))
    assert way.seconds == pytest.approx(float(exactly @ pass_s))


def test_a_draft_that_seldom_comes_makes_no_other_cheaper() -> None:
    gains, chances = np.full((2, 1), 0.6), np.array([[1.0], [0.05]])
    allocator = Allocator(gains, chances, [1, 1], np.array([1.0, 1.5, 1.5]), np.zeros(2))
    assert allocator.expected((1, 1)).seconds == pytest.approx(1.5)


def test_what_drafts_of_many_requests_cost_where_not_all_come() -> None:
    chances = np.tile([[1.0, 0.6, 0.3]], (16, 1))
    counts = np.arange(49)
    for pass_s in (1 + 0.1 * counts, 1 + 0.05 * np.maximum(counts - 20.0, 0.0)):
        way = Allocator(np.full((16, 3), 0.1), chances, [3] * 16, pass_s, np.zeros(4)).expected((3,) * 16)
        exactly = np.array([1.0])
        for _ in range(16):
            exactly = np.convolve(exactly, [0.0, 0.4, 0.3, 0.3])
        assert way.seconds == pytest.approx(float(exactly @ pass_s[: len(exactly)]), rel=0.01)


def test_timers_wait_longer_and_longer() -> None:
    timer = Timer(first=2, last=8)
    probes = []
    for step in range(40):
        if timer.wait():
            timer.probed()
            probes.append(step)
    assert [b - a for a, b in itertools.pairwise(probes)][:4] == [4, 8, 8, 8]
    timer.again()
    assert timer.wait()


def test_the_budget_bounds_what_probes_lose() -> None:
    budget = Budget()
    lost = 0.0
    for _ in range(20_000):
        budget.step(1.0)
        lost += 0.5 * budget.spend(0.5)
    assert 0.5 * BUDGET * 20_000 < lost <= 1.1 * BUDGET * 20_000
