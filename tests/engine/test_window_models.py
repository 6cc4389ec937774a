"""Tiny windowed models through the whole engine: transformers' tokens, and blocks as the window needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.api import EngineRequest, SamplingParams
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.kv.storage import allocate_pool
from engine.models.loader import load_model
from prefix_index.hashing import ChainHasher
from tests.engine.digest_model import run_all
from tests.support.reference_model import prompt, reference, reference_logits
from tests.support.tiny_families import WINDOW, tiny_variety

MIXED = ["gemma2", "gemma3", "qwen2 windows"]
BLOCK, NEW_TOKENS = 8, 120
REACH = -(-(WINDOW - 1) // BLOCK) + 1


def make(folder: Path, num_blocks: int = 64, **settings: int | str) -> LLMEngine:
    backend = str(settings.pop("attention_backend", "sdpa"))
    model = load_model(folder, attention_backend=backend, ops="cpu" if backend == "cpu" else "torch")
    config = EngineConfig(
        model_dir=folder,
        block_size=BLOCK,
        check_invariants=True,
        **settings,  # type: ignore[arg-type]
    )
    pool = allocate_pool(model.config, num_blocks, BLOCK, torch.float32)
    return LLMEngine(model, pool, config, ChainHasher("tiny", BLOCK))


def ask(name: str, tokens: list[int], count: int) -> EngineRequest:
    sampling = SamplingParams(0.0, 1.0, 0, 0, 0, count, ignore_eos=True)
    return EngineRequest(name, tuple(tokens), sampling)


def require_greedy(folder: Path, tokens: list[int], answer: tuple[int, ...]) -> None:
    """The answer is what transformers draws, each token given those before it."""
    logits = reference_logits(reference(folder), [*tokens, *answer])
    assert answer == tuple(logits[len(tokens) - 1 : -1].argmax(-1).tolist())


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
@pytest.mark.parametrize("variety", ["mistral", "phi3", "qwen3 biased windows"])
def test_a_long_answer_takes_no_more_blocks_than_the_window_reaches(
    variety: str, backend: str, tmp_path: Path
) -> None:
    folder = tiny_variety(tmp_path, variety)
    engine = make(folder, attention_backend=backend, prefill_chunk=16)
    tokens = prompt(3 * WINDOW)
    engine.submit(ask("a", tokens, NEW_TOKENS))
    pinned, answer = [], []
    while engine.has_work():
        answer += [token.token_id for token in engine.step().tokens]
        if answer:
            pinned.append(engine.stats().blocks_pinned)
    require_greedy(folder, tokens, tuple(answer))
    assert max(pinned) <= REACH
    # Once more, as a prefix hit of the prompt and half the answer.
    again = [*tokens, *answer[: NEW_TOKENS // 2]]
    before = engine.stats().cached_tokens_total
    engine.submit(ask("b", again, 10))
    assert run_all(engine)[0].of("b")[0] == tuple(answer[NEW_TOKENS // 2 :][:10])
    assert engine.stats().cached_tokens_total - before >= len(again) - BLOCK


def test_swapped_windows_come_back(tmp_path: Path) -> None:
    folder = tiny_variety(tmp_path, "mistral")
    engine = make(folder, num_blocks=12, max_model_len=96)
    # All grow at the same time, and none has a window's worth of room.
    prompts = [prompt(5, seed) for seed in range(5)]
    for number, tokens in enumerate(prompts):
        engine.submit(ask(f"r{number}", tokens, 60))
    answers, _ = run_all(engine)
    for number, tokens in enumerate(prompts):
        require_greedy(folder, tokens, answers.of(f"r{number}")[0])
    assert engine.stats().swaps_total > 0


@pytest.mark.parametrize("backend", ["sdpa", "reference", "cpu"])
@pytest.mark.parametrize("variety", MIXED)
def test_layers_with_a_window_let_go_beside_layers_without(
    variety: str, backend: str, tmp_path: Path
) -> None:
    folder = tiny_variety(tmp_path, variety)
    engine = make(folder, num_blocks=160, attention_backend=backend, prefill_chunk=16)
    windows = engine._blocks._windows
    full, sliding = windows.count(0), len(windows) - windows.count(0)
    assert full
    assert sliding
    tokens = prompt(3 * WINDOW)
    engine.submit(ask("a", tokens, 60))
    answer: list[int] = []
    while engine.has_work():
        answer += [token.token_id for token in engine.step().tokens]
        pages = -(-(len(tokens) + len(answer)) // BLOCK)
        if answer:
            assert engine.stats().blocks_pinned <= full * pages + sliding * (REACH + 1)
    require_greedy(folder, tokens, tuple(answer))
    assert engine.stats().blocks_pinned == 0
    # Once more, as a prefix hit of the prompt and half the answer.
    again = [*tokens, *answer[:30]]
    before = engine.stats().cached_tokens_total
    engine.submit(ask("b", again, 10))
    assert run_all(engine)[0].of("b")[0] == tuple(answer[30:40])
    assert engine.stats().cached_tokens_total - before >= len(again) - BLOCK


@pytest.mark.parametrize("variety", MIXED)
def test_swapped_histories_come_back(variety: str, tmp_path: Path) -> None:
    folder = tiny_variety(tmp_path, variety)
    groups = len(load_model(folder).config.layer_groups)
    engine = make(folder, num_blocks=12 * groups, max_model_len=96)
    prompts = [prompt(5, seed) for seed in range(5)]
    for number, tokens in enumerate(prompts):
        engine.submit(ask(f"r{number}", tokens, 60))
    answers, _ = run_all(engine)
    for number, tokens in enumerate(prompts):
        require_greedy(folder, tokens, answers.of(f"r{number}")[0])
    assert engine.stats().swaps_total > 0
