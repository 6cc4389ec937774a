"""The prefix cache finds what an oracle finds, on conversations that share beginnings and grow."""

from __future__ import annotations

import random

import pytest

from benchmarks.bars import Bars
from benchmarks.prefix_cache_trace import Hits, OracleReplay, Prompt, compare, replay


def conversations(seed: int, turns: int = 600) -> list[Prompt]:
    """Prompts of up to 40 blocks: a few system prompts, many conversations that grow turn by turn."""
    randomness = random.Random(seed)
    fresh = iter(range(1000, 10**6))
    systems = [tuple(next(fresh) for _ in range(randomness.randint(1, 6))) for _ in range(4)]
    open_ones: list[Prompt] = []
    prompts: list[Prompt] = []
    for _ in range(turns):
        if not open_ones or randomness.random() < 0.3:
            open_ones.append(randomness.choice(systems))
        place = int(randomness.triangular(0, len(open_ones) - 1, len(open_ones) - 1))
        grown = open_ones[place] + tuple(next(fresh) for _ in range(randomness.randint(1, 5)))
        open_ones[place] = grown
        prompts.append(grown)
        if len(grown) > 35:
            del open_ones[place]
    return prompts


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("in_flight", [1, 6])
def test_as_many_hits_as_the_oracle(seed: int, in_flight: int) -> None:
    bars = Bars()
    prompts = conversations(seed)
    compare(prompts, [60, 250, 1000, 5000], in_flight, bars)
    assert bars.missed == []
    rates = [replay(prompts, size, in_flight)[0].rate for size in (60, 250, 5000)]
    assert rates == sorted(rates), "a larger pool finds more"
    assert rates[0] < rates[1] - 0.05, "the small pool must be short of room, or nothing was shown"


def test_the_oracle_drops_the_leaf_that_was_not_used_for_longest() -> None:
    oracle = OracleReplay(4)

    def use(*prompt: int) -> int:
        begun = oracle.begin(prompt)
        assert begun is not None
        oracle.end(begun[0])
        return begun[1]

    assert use(1, 2) == 0
    assert use(1, 3) == 1
    assert use(4) == 0
    assert use(1, 2) == 2
    # Full; 3 is the leaf out of use for longest, then 4.
    assert use(5) == 0
    assert use(1, 3) == 1
    assert use(4) == 0


def test_a_worse_cache_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = Bars()
    worse = Hits(found=90, asked=100)
    monkeypatch.setattr("benchmarks.prefix_cache_trace.replay", lambda *_: (worse, Hits(found=93, asked=100)))
    compare([], [60], 1, bars)
    assert bars.missed == ["60 blocks: hit rate 0.9000, the oracle's 0.9300"]
