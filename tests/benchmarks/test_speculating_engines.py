"""Streams of requests through engines that speculate in different ways, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.speculating.bench import Bench, Loaded, Stream, answers
from benchmarks.speculating.formula import Rounds
from benchmarks.speculating.found import run_together
from benchmarks.speculating.rules import measure_rules, rules_table
from benchmarks.speculating.stretch import Stretch
from benchmarks.speculating.variants import NONE, Variant, under_rule
from benchmarks.speculating.workloads import requests_of
from engine.speculation.config import SpeculationConfig
from tests.support.tiny_models import tiny_llama

TOKENS = 12
# Text that repeats itself, so that prompt lookup has something to propose.
PROMPTS = [tuple([*range(start, start + 9)] * 3) for start in (10, 20, 30, 40)]
REQUESTS = requests_of(PROMPTS, TOKENS)
NGRAM = SpeculationConfig(method="ngram", num_speculative_tokens=3, adaptive=False)
FIXED = Variant("k = 2", NGRAM, drafts=2)
ALL = Variant("ngram", NGRAM)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder: Path = tiny_llama(tmp_path_factory.mktemp("model"))
    return Loaded.load(folder, "none", 1)


def test_variants_decode_the_same_and_whole_batches_alone_count(loaded: Loaded) -> None:
    bench = Bench(loaded, 2, REQUESTS)
    streams = {v.name: Stream(bench.engine(v), REQUESTS, 2) for v in (NONE, FIXED, ALL)}

    totals = run_together(streams, 6, first=0)

    none = totals["none"]
    assert none.per_pass == 1.0
    assert none.chosen == ()
    for total in totals.values():
        assert total.passes % 2 == 0
        assert 0 < total.tokens <= len(REQUESTS) * (TOKENS - 1)
    assert sum(totals["k = 2"].chosen[3:]) == 0
    assert totals["k = 2"].drafted == sum(k * count for k, count in enumerate(totals["k = 2"].chosen))
    assert totals["k = 2"].drafted > 0


def test_a_stream_that_is_over_leaves_nothing_behind(loaded: Loaded) -> None:
    engine = Bench(loaded, 2, REQUESTS).engine(FIXED)
    stream = Stream(engine, REQUESTS, 2)

    stream.advance(10_000)

    assert stream.is_over
    assert stream.advance(1) == Stretch()
    assert (engine.stats().running, engine.stats().waiting) == (0, 0)


def test_too_few_requests_for_the_batch_are_not_begun(loaded: Loaded) -> None:
    engine = Bench(loaded, 8, REQUESTS).engine(NONE)

    assert Stream(engine, REQUESTS, 8).is_over
    assert not engine.has_work()


def test_prompts_that_come_again_are_found(loaded: Loaded) -> None:
    engine = Bench(loaded, 2, REQUESTS).engine(FIXED)
    for _ in range(2):
        Stream(engine, REQUESTS, 2).advance(10_000)

    assert engine.stats().cached_tokens_total > 0


def test_prompts_are_computed_by_the_first_engine_alone(loaded: Loaded) -> None:
    """The others take their KV over: what they draw from it is the same."""
    bench = Bench(loaded, 2, REQUESTS)
    computed = bench.engine(NONE).stats().prompt_tokens_total
    engine = bench.engine(FIXED)

    Stream(engine, REQUESTS, 2).advance(10_000)

    assert computed == sum(map(len, PROMPTS))
    # Two prompts are begun, whose full blocks are found.
    assert engine.stats().cached_tokens_total >= 2 * 16
    assert answers(engine, REQUESTS, 2) == answers(Bench(loaded, 2, ()).engine(FIXED), REQUESTS, 2)


@pytest.mark.parametrize(("rule", "temperature"), [("coupled", 0.0), ("coupled", 1.0), ("standard", 1.0)])
def test_answers_count_every_pass_of_every_request(loaded: Loaded, rule: str, temperature: float) -> None:
    engine = Bench(loaded, 3, REQUESTS).engine(under_rule(ALL, rule))

    found = answers(engine, requests_of(PROMPTS, TOKENS, temperature), 3)

    assert len(found) == len(REQUESTS)
    rounds = Rounds(3, tuple(answer.by_accepted for answer in found))
    for answer in found:
        assert answer.passes == answer.by_accepted.total()
        given = sum((accepted + 1) * count for accepted, count in answer.by_accepted.items())
        # The last pass may find more than the answer may have.
        assert answer.tokens <= given <= answer.tokens + 3
    assert rounds.tested >= rounds.right
    # A random model repeats itself where nothing is drawn.
    assert temperature or rounds.right > 0


def test_both_rules_are_measured_on_the_same_prompts(loaded: Loaded) -> None:
    sampled = {name: requests_of(PROMPTS, TOKENS, 1.0, salt=name) for name in ("one", "two")}
    bench = Bench(loaded, 3, [*sampled["one"], *sampled["two"]])

    found = measure_rules(bench, ALL, sampled, 3)

    assert {rule: {name: len(own) for name, own in sets.items()} for rule, sets in found.items()} == {
        "coupled": {"one": 4, "two": 4},
        "standard": {"one": 4, "two": 4},
    }
    # Two rules and their ratio.
    assert rules_table({ALL.name: found}, "title").row_count == 3
