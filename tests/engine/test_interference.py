"""What long prompts do to those who decode, on a machine whose every step takes a known time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.engine.scheduler_bench import Bench

SLOWDOWN = 1.35
BAR = 1.5
PROMPT = 2000
DECODES = 4

# Seconds of a step, by decodes, prompt tokens, and tokens of context that the prompt tokens look back on.
Machine = Callable[[int, int, int], float]


def linear(decodes: int, tokens: int, context: int) -> float:
    return 0.018 + 0.003 * decodes + 0.001 * tokens + 5e-8 * tokens * context


def memory_bound(decodes: int, tokens: int, context: int) -> float:
    """A few rows more cost nothing, for the weights have to be read anyway."""
    return max(0.018, 0.0011 * (decodes + tokens)) + 5e-8 * tokens * context


def tiled(decodes: int, tokens: int, context: int) -> float:
    """Rows are computed sixteen at a time."""
    return 0.010 + 0.012 * -(-(decodes + tokens) // 16) + 5e-8 * tokens * context


def gaps(machine: Machine, prompts: bool, seed: int) -> tuple[list[float], int]:
    """Times between the tokens of sequences that decode throughout, and prompt tokens run beside them."""
    randomness = random.Random(seed)
    bench = Bench(num_blocks=1300, budget=512, chunk=256, running=64, slowdown=SLOWDOWN)
    now_s, taken, prompt_tokens = 0.0, [], 0
    watched = [bench.add(3) for _ in range(DECODES)]
    arriving = None
    for step in range(600):
        if prompts and step > 20 and (arriving is None or arriving.context_done):
            if arriving is not None:
                bench.end(arriving)
            arriving = bench.add(PROMPT, submitted_s=now_s)
        context = arriving.num_computed if arriving is not None else 0
        batch = bench.step(now_s)
        beside = batch.num_tokens - batch.num_decodes
        seconds = machine(batch.num_decodes, beside, context) * randomness.lognormvariate(0, 0.03)
        if randomness.random() < 0.003:
            seconds *= 5  # something else had the machine
        now_s += seconds
        bench.cost.observe(batch.num_decodes, beside, seconds)
        if step > 20:
            assert all(sequence in batch.sequences for sequence in watched), "decodes run in every step"
            taken.append(seconds)
            prompt_tokens += beside
    return sorted(taken), prompt_tokens


@pytest.mark.parametrize("machine", [linear, memory_bound, tiled])
@pytest.mark.parametrize("seed", range(2))
def test_p99_of_the_time_between_tokens_stays_within_the_bar(machine: Machine, seed: int) -> None:
    alone, _ = gaps(machine, prompts=False, seed=seed)
    loaded, tokens = gaps(machine, prompts=True, seed=seed)
    place = len(alone) * 99 // 100
    assert loaded[place] <= BAR * alone[place]
    # And the prompts get most of what the bound leaves them.
    bound = SLOWDOWN * machine(DECODES, 0, 0)
    ideal = max(tokens for tokens in range(1, 512) if machine(DECODES, tokens, 0) <= bound)
    assert tokens >= 0.5 * ideal * len(loaded)


def test_without_the_bound_the_bar_would_be_missed() -> None:
    bench = Bench(num_blocks=4000, budget=512, chunk=256, slowdown=0.0)
    bench.add(3)
    bench.step()
    bench.step()
    bench.add(PROMPT, submitted_s=2.0)
    batch = bench.step(3.0)
    assert linear(1, batch.num_tokens - 1, 0) > BAR * linear(1, 0, 0)
