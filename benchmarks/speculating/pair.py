"""The part `pair`: a small model drafts for a greater one of its family, on programming tasks."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.engine_bars import Verdict
from benchmarks.speculating.bench import Bench, Loaded
from benchmarks.speculating.found import Found, positions_table, speed_table
from benchmarks.speculating.methods import measure_each
from benchmarks.speculating.part import Outcome
from benchmarks.speculating.rules import measure_rules, rules_table
from benchmarks.speculating.variants import NONE, Variant
from benchmarks.speculating.workloads import prompts_of, requests_of
from engine.speculation.config import SpeculationConfig

SET = "humaneval"
LEAST_PER_PASS = 3.0
_TURN = 8
_BATCH = 4


@dataclass(frozen=True, slots=True)
class Pair:
    """What is measured.

    Attributes:
        target: folder of the model.
        draft: folder of the one that drafts.
        quantization: of the target; what drafts is int8 wherever it may be.
        threads: of torch.
        lengths: of the chains.
        limit: prompts, 0 for all.
        tokens: most new ones of each.
    """

    target: Path
    draft: Path
    quantization: str
    threads: int
    lengths: tuple[int, ...]
    limit: int
    tokens: int


def run_pair(pair: Pair, prompts: Path, console: Console) -> Outcome:
    """Measures and judges."""
    questions = prompts_of(SET, prompts, pair.target, pair.limit)
    with console.status(f"loading {pair.target.name}"):
        loaded = Loaded.load(pair.target, pair.quantization, pair.threads)
    chains = [_chain(pair.draft, length) for length in pair.lengths]
    workload = f"{SET} greedy"
    bench = Bench(loaded, 1, ())
    requests = requests_of(questions, pair.tokens)
    found = measure_each(bench, {workload: requests}, [NONE, *chains], console, _TURN)
    best = max(chains, key=lambda chain: found.per_pass([workload], chain.name).value)
    del bench
    # Each engine has a draft model of its own, and engines refer to themselves.
    gc.collect()
    sampled = requests_of(questions, pair.tokens, 1.0, 0)
    with console.status("temperature 1, by rule"):
        ruled = measure_rules(Bench(loaded, _BATCH, sampled), best, {SET: sampled}, _BATCH)
    names = f"{pair.draft.name} for {pair.target.name}, {pair.quantization}, {len(questions)} prompts"
    return Outcome(
        (
            speed_table(found, f"Two models at batch 1 ({names})"),
            positions_table(found),
            rules_table({best.name: ruled}, f"Tokens a pass at temperature 1 ({names})"),
        ),
        (pair_verdict(found, workload, [chain.name for chain in chains], names),),
        asdict(found),
    )


def pair_verdict(found: Found, workload: str, chains: Sequence[str], names: str) -> Verdict:
    """Judged on the better length."""
    figures = {chain: found.per_pass([workload], chain) for chain in chains}
    best = max(figures, key=lambda chain: figures[chain].value)
    speed = found.speed([workload], best)
    return Verdict(
        f"two models, {SET}, greedy: at least {LEAST_PER_PASS} tokens a pass",
        f"{figures[best].text()} ({best}; {names}; {speed.text()}x tokens/s)",
        figures[best].value >= LEAST_PER_PASS,
    )


def _chain(draft: Path, length: int) -> Variant:
    speculation = SpeculationConfig(
        method="draft_model", model=draft, num_speculative_tokens=length, adaptive=False
    )
    return Variant(f"draft_model chain of {length}", speculation)
