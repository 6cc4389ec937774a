"""What a step costs beside its model: `python -m benchmarks.control_cost`.

The model costs nothing: it hands out logits that were there before. What is left is the engine's own work for
one decode step: scheduling, building the inputs, choosing tokens, and what the step puts out. Bars: at most
2.5 ms with 256 sequences that decode greedily, and growth no steeper than their number from there to 1,024.

The first table has a vocabulary of 1,024, so that the reading of logits does not hide the control cost. The
second one has 256 sequences over a vocabulary of 49,152 with what requests may ask of sampling; one pass over
the logits is the least that any sampler needs.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.bars import Bars, Spread
from engine.api import EngineRequest, SamplingParams
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.models.batch import ForwardBatch
from engine.models.config import ModelConfig
from engine.models.features import FeatureTap
from prefix_index.hashing import ChainHasher
from tests.engine.digest_model import MODEL_CONFIG
from worker.collector import settle_collector

SIZES = (1, 64, 256, 1024)
BAR_S = 2.5e-3
# Four times the sequences in four times the time, and what noise may add.
LINEAR = 4 * 1.25
SMALL_VOCAB = 1024
LARGE_VOCAB = 49_152
PROMPT_TOKENS = 100
STEPS = 60
# With the large vocabulary: a step takes tens of milliseconds.
LARGE_STEPS = 8
ROUNDS = 5
BLOCK_SIZE = 16

GREEDY = SamplingParams(
    temperature=0.0, top_p=1.0, top_k=0, seed=0, choice=0, max_tokens=4000, ignore_eos=True
)
SAMPLED = replace(GREEDY, temperature=0.8)
MIXES: dict[str, SamplingParams] = {
    "greedy": GREEDY,
    "temperature": SAMPLED,
    "temperature, top_p 0.95": replace(SAMPLED, top_p=0.95),
    "temperature, top_k 50": replace(SAMPLED, top_k=50),
    "temperature, min_p 0.05": replace(SAMPLED, min_p=0.05),
    "temperature, top_k 50, top_p 0.9, min_p 0.01": replace(SAMPLED, top_k=50, top_p=0.9, min_p=0.01),
    "greedy, all penalties": replace(
        GREEDY, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5
    ),
    "greedy, 5 logprobs": replace(GREEDY, logprobs=5),
}


class FreeModel:
    """Hands out logits [max_rows, vocab] that are there already: probabilities fall as rank to the 1.5th."""

    def __init__(self, vocab_size: int, max_rows: int) -> None:
        self.config: ModelConfig = replace(
            MODEL_CONFIG, vocab_size=vocab_size, max_position_embeddings=8192, eos_token_ids=frozenset()
        )
        generator = torch.Generator().manual_seed(1)
        ranks = torch.rand(max_rows, vocab_size, generator=generator).argsort(dim=-1) + 1
        self._logits = -1.5 * ranks.float().log()

    def forward(self, batch: ForwardBatch, kv: torch.Tensor, tap: FeatureTap | None = None) -> torch.Tensor:
        """The first rows of the logits; computes and writes nothing."""
        return self._logits[: len(batch.logits_rows)]


def step_time(model: FreeModel, sampling: SamplingParams, num_sequences: int, steps: int) -> Spread:
    """Seconds of one decode step, over `steps` steps in each of several rounds."""
    blocks = num_sequences * (-(-(PROMPT_TOKENS + (ROUNDS + 1) * steps + 8) // BLOCK_SIZE) + 1)
    config = EngineConfig(
        model_dir=Path("unused"), block_size=BLOCK_SIZE, max_running=num_sequences,
        max_batched_tokens=num_sequences * PROMPT_TOKENS, prefill_chunk=PROMPT_TOKENS,
    )  # fmt: skip
    pool = torch.zeros(blocks + 1, 1, 2, 1, BLOCK_SIZE, 1)
    engine = LLMEngine(model, pool, config, ChainHasher("free", BLOCK_SIZE))
    random = np.random.default_rng(0)
    for number in range(num_sequences):
        prompt = tuple(random.integers(0, model.config.vocab_size, PROMPT_TOKENS).tolist())
        engine.submit(EngineRequest(f"r{number}", prompt, replace(sampling, seed=number)))
    while engine.stats().running < num_sequences or engine.stats().queued_prefill_tokens:
        engine.step()
    _steps(engine, num_sequences, steps)
    # As the engine's thread would have it: a collection is not a step's cost, but it may come at any time.
    gc.collect()
    return Spread.of([_steps(engine, num_sequences, steps) for _ in range(ROUNDS)])


def _steps(engine: LLMEngine, num_sequences: int, steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(steps):
        output = engine.step()
        assert len(output.tokens) == num_sequences
    return (time.perf_counter() - begin) / steps


def one_pass(model: FreeModel, rows: int) -> Spread:
    """Seconds of reading the logits once: their maxima, by the fastest means there is."""
    logits = model._logits[:rows].numpy()
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        logits.max(axis=-1)
        times.append(time.perf_counter() - begin)
    return Spread.of(times)


def control(bars: Bars) -> Table:
    """Greedy steps by number of sequences."""
    table = Table("sequences", "ms", "us each", title="control cost of a decode step, greedy")
    model = FreeModel(SMALL_VOCAB, max(SIZES))
    # As in a worker's process.
    settle_collector()
    times = {size: step_time(model, GREEDY, size, STEPS) for size in SIZES}
    for size, spread in times.items():
        table.add_row(str(size), spread.text(1e3, 2), spread.text(1e6 / size, 2))
    bars.require(times[256].median <= BAR_S, f"256 sequences in {BAR_S * 1e3} ms")
    bars.require(
        times[1024].median <= LINEAR * times[256].median,
        f"1,024 sequences in at most {LINEAR} times what 256 take",
    )
    return table


def sampling(names: Sequence[str]) -> Table:
    """Steps of 256 sequences by what they ask of sampling."""
    table = Table("256 sequences, vocabulary 49,152", "ms", title="with what requests may ask for")
    model = FreeModel(LARGE_VOCAB, 256)
    table.add_row("one pass over the logits", one_pass(model, 256).text(1e3, 2))
    for name in names:
        table.add_row(name, step_time(model, MIXES[name], 256, LARGE_STEPS).text(1e3, 2))
    return table


def main() -> None:
    """Measures and prints; exits non-zero where a bar is missed."""
    bars = Bars()
    console = Console(width=100)
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} CPUs")
    console.print(control(bars))
    console.print(sampling(list(MIXES)))
    bars.exit()


if __name__ == "__main__":
    main()
