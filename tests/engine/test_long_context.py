"""Contexts of 8,192 tokens through the whole engine, with and without windows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.api import EngineRequest, FinishReason, SamplingParams
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.kv.storage import allocate_pool
from engine.models.loader import load_model
from prefix_index.hashing import ChainHasher
from tests.engine.digest_model import run_all
from tests.support.reference_model import prompt, reference, reference_logits
from tests.support.tiny_families import tiny_variety

CONTEXT = 8192
NEW_TOKENS = 24


@pytest.mark.parametrize("variety", ["llama llama3", "gemma3"])
def test_a_full_context_equals_transformers(variety: str, tmp_path: Path) -> None:
    folder = tiny_variety(tmp_path, variety, max_model_len=CONTEXT)
    model = load_model(folder)
    config = EngineConfig(
        model_dir=folder, max_model_len=CONTEXT, max_batched_tokens=1024, prefill_chunk=1024
    )
    num_blocks = (CONTEXT // 16 + 40) * len(model.config.layer_groups)
    pool = allocate_pool(model.config, num_blocks, 16, torch.float32)
    engine = LLMEngine(model, pool, config, ChainHasher("tiny", 16))
    tokens = prompt(CONTEXT - NEW_TOKENS)
    greedy = SamplingParams(0.0, 1.0, 0, 0, 0, NEW_TOKENS + 1, ignore_eos=True)
    engine.submit(EngineRequest("long", tuple(tokens), greedy))
    engine.submit(EngineRequest("short", tuple(tokens[:50]), greedy))
    answers, _ = run_all(engine)
    answer, reason = answers.of("long")
    # One token less than asked for: the context is full.
    assert (len(answer), reason) == (NEW_TOKENS, FinishReason.LENGTH)
    expected = reference_logits(reference(folder), [*tokens, *answer])[len(tokens) - 1 : -1]
    assert answer == tuple(expected.argmax(-1).tolist())
    assert len(answers.of("short")[0]) == NEW_TOKENS + 1
