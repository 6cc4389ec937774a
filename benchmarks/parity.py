"""Exactness: greedy fp32 output equals transformers' token for token, however a request is served.

    python benchmarks/parity.py --prompts DIR [--model demo] [--modes aggregated,...] [--limit N]

Every mode runs each prompt twice, greedily and sampled with a seed. Greedy token ids must equal those of
transformers; sampled ones must equal the aggregated mode's. Each mode also proves that it was one: prefix
hits were hits, preemptions happened, NIXL moved the bytes between two processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from benchmarks.bars import Bars
from benchmarks.clusters import run_disaggregated
from benchmarks.engines import mixed_lengths, run_concurrently
from benchmarks.prompts import Prompt, load_prompts
from benchmarks.reference import greedy_reference
from cluster.environment import read_environment
from cluster.model_store.progress import silent
from cluster.model_store.store import resolve
from engine.api import Engine, EngineRequest, SamplingParams
from engine.config import EngineConfig
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer
from worker.assembly import assemble
from worker.config import WorkerConfig

SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, top_k=50, seed=0, choice=0, max_tokens=1)
MAX_MODEL_LEN = 2048
SAMPLED_SUFFIX = "/sampled"
Answers = dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Suite:
    """What every mode is given."""

    model_dir: Path
    requests: tuple[EngineRequest, ...]
    bars: Bars

    def engine(self, **settings: object) -> Engine:
        """A fresh engine with the settings of a mode, invariants checked after each step."""
        config = EngineConfig(model_dir=self.model_dir, max_model_len=MAX_MODEL_LEN, check_invariants=True)
        engine = replace(config, **settings)  # type: ignore[arg-type]  # names are EngineConfig's
        return assemble(WorkerConfig("parity-0", 1, "local", "parity", engine, transports=())).engine


async def build_requests(
    model_dir: Path, prompts: Sequence[Prompt], max_tokens: int, bars: Bars
) -> list[EngineRequest]:
    """Greedy requests, one for each prompt, in the model's chat form as transformers makes it."""
    yardstick = AutoTokenizer.from_pretrained(model_dir)
    tokenizer, template = Tokenizer.load(model_dir), ChatTemplate.load(model_dir)
    greedy = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, seed=0, choice=0, max_tokens=max_tokens)
    requests = []
    for prompt in prompts:
        messages = [{"role": "user", "content": prompt.text}]
        encoded: Any = yardstick.apply_chat_template(messages, add_generation_prompt=True)
        token_ids: list[int] = encoded["input_ids"]
        own = await tokenizer.encode(template.render(messages), add_special_tokens=False)
        bars.require(list(own) == token_ids, f"{prompt.name}: the router tokenizes it otherwise")
        requests.append(EngineRequest(prompt.name, tuple(token_ids), greedy))
    return requests


def with_sampled(requests: Sequence[EngineRequest]) -> list[EngineRequest]:
    """Each request and its sampled twin, whose seed is its place in the list."""
    doubled = []
    for seed, request in enumerate(requests):
        sampling = replace(SAMPLED, seed=seed, max_tokens=request.sampling.max_tokens)
        twin = replace(request, request_id=request.request_id + SAMPLED_SUFFIX, sampling=sampling)
        doubled += [request, twin]
    return doubled


def aggregated(suite: Suite) -> Answers:
    """One engine, one request at a time, no prefix cache."""
    engine = suite.engine(enable_prefix_cache=False)
    return run_concurrently(engine, suite.requests, 1, "aggregated")


def prefix_hit(suite: Suite) -> Answers:
    """Every prompt is in the cache before it is asked."""
    engine = suite.engine(kv_memory_bytes=4 << 30)
    warm = [replace(r, request_id=f"warm/{r.request_id}") for r in suite.requests]
    warm = [replace(r, sampling=replace(r.sampling, max_tokens=1)) for r in warm]
    run_concurrently(engine, warm, 8, "prefix hit: warming")
    before = engine.stats()
    answers = run_concurrently(engine, suite.requests, 8, "prefix hit")
    after = engine.stats()
    hits = after.cached_tokens_total - before.cached_tokens_total
    # All full blocks of every prompt but those that do not fit the pool.
    prompt_tokens = sum(len(request.prompt_token_ids) for request in suite.requests)
    suite.bars.require(hits > 0.7 * prompt_tokens, f"prefix hit: {hits} of {prompt_tokens} tokens were hits")
    return answers


def chunked(suite: Suite) -> Answers:
    """Prefill in chunks of 16 tokens, mixed with decodes."""
    engine = suite.engine(prefill_chunk=16, enable_prefix_cache=False)
    return run_concurrently(engine, suite.requests, 8, "chunked")


def preempted(suite: Suite, swap_memory_bytes: int = 0) -> Answers:
    """A pool too small for the batch: sequences are thrown out and computed anew."""
    longest = max(len(request.prompt_token_ids) for request in suite.requests)
    blocks = -(-(longest + suite.requests[0].sampling.max_tokens) // 16) + 2
    engine = suite.engine(
        num_blocks=blocks,
        enable_prefix_cache=False,
        max_model_len=(blocks - 1) * 16,
        swap_memory_bytes=swap_memory_bytes,
    )
    label = "swapped" if swap_memory_bytes else "preempted"
    answers = run_concurrently(engine, suite.requests, 24, label)
    stats = engine.stats()
    happened = stats.swaps_total if swap_memory_bytes else stats.preemptions_total
    suite.bars.require(happened > 0, f"{label}: it did not happen")
    return answers


def swapped(suite: Suite) -> Answers:
    """The same, their KV kept in host memory meanwhile."""
    return preempted(suite, swap_memory_bytes=1 << 30)


def batched(suite: Suite) -> Answers:
    """Sixteen sequences of mixed lengths in one batch."""
    engine = suite.engine(enable_prefix_cache=False, kv_memory_bytes=2 << 30)
    return run_concurrently(engine, mixed_lengths(suite.requests), 16, "batch of 16")


def disaggregated(suite: Suite) -> Answers:
    """A real cluster, every prompt prefilled by another process and pulled over NIXL."""
    return run_disaggregated(suite.model_dir, suite.requests, suite.bars)


MODES: dict[str, Callable[[Suite], Answers]] = {
    "aggregated": aggregated,
    "disaggregated": disaggregated,
    "prefix_hit": prefix_hit,
    "chunked": chunked,
    "preempted": preempted,
    "swapped": swapped,
    "batched": batched,
}


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Index of the first token that differs, None for equal answers."""
    if list(expected) == list(got):
        return None
    pairs = enumerate(zip(expected, got, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(expected), len(got)))


def sampled_digest(answers: Answers) -> str:
    """Eight digits over all sampled answers: equal digests of two runs mean equal tokens."""
    sampled = sorted((name, tokens) for name, tokens in answers.items() if name.endswith(SAMPLED_SUFFIX))
    return blake2b(repr(sampled).encode(), digest_size=4).hexdigest()


def compare(suite: Suite, mode: str, answers: Answers, expected: Answers) -> tuple[int, int]:
    """Equal greedy and equal sampled answers; every difference is a missed bar."""
    equal = [0, 0]
    for name, tokens in expected.items():
        difference = first_difference(tokens, answers[name])
        if difference is None:
            equal[name.endswith(SAMPLED_SUFFIX)] += 1
        else:
            suite.bars.require(False, f"{mode}: {name} differs at token {difference}")
    return equal[0], equal[1]


def main(
    prompts: Annotated[Path, typer.Option(help="Folder of question files (.jsonl).")],
    model: Annotated[str, typer.Option(help="Model name, folder or hub id.")] = "demo",
    modes: Annotated[str, typer.Option(help=f"Comma-separated, of {', '.join(MODES)}.")] = ",".join(MODES),
    limit: Annotated[int, typer.Option(help="Only every so many prompts; 0 takes all.")] = 0,
    max_tokens: Annotated[int, typer.Option(help="New tokens for each prompt.")] = 48,
    threads: Annotated[int, typer.Option(help="Torch threads; 0 takes torch's default.")] = 0,
    fresh_reference: Annotated[bool, typer.Option(help="Compute transformers' answers anew.")] = False,
) -> None:
    """Compares every mode with transformers, token for token. Exits 1 on any difference."""
    chosen = [name for name in modes.split(",") if name]
    if unknown := set(chosen) - set(MODES):
        raise SystemExit(f"unknown modes {sorted(unknown)}; known are {', '.join(MODES)}")
    if threads:
        torch.set_num_threads(threads)
    console, bars = Console(), Bars()
    home = read_environment().home
    model_dir = resolve(model, home, silent).path
    questions = load_prompts(prompts)
    greedy = asyncio.run(
        build_requests(
            model_dir, questions[:: len(questions) // limit] if limit else questions, max_tokens, bars
        )
    )
    reference = greedy_reference(
        model_dir, [r.prompt_token_ids for r in greedy], max_tokens, home / "benchmarks", fresh_reference
    )
    expected: Answers = {r.request_id: tokens for r, tokens in zip(greedy, reference, strict=True)}
    suite = Suite(model_dir, tuple(with_sampled(greedy)), bars)
    table = Table(
        "mode", "greedy = transformers", "sampled = first mode", "sampled digest", title="Exactness (fp32)"
    )  # fmt: skip
    for mode in chosen:
        answers = MODES[mode](suite)
        for name, tokens in answers.items():
            if name.endswith(SAMPLED_SUFFIX):
                expected.setdefault(name, tokens)
        same_greedy, same_sampled = compare(suite, mode, answers, expected)
        counts = (f"{same}/{len(greedy)}" for same in (same_greedy, same_sampled))
        table.add_row(mode, *counts, sampled_digest(answers))
        console.print(table)
    bars.exit()


if __name__ == "__main__":
    typer.run(main)
