"""Engines over tiny real models."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.grammar.base import GrammarCompiler
from engine.kv.storage import allocate_pool
from engine.models.decoder import Decoder
from prefix_index.hashing import ChainHasher


def still_clock() -> float:
    """A clock by which copies cost nothing, so that whatever is preempted and fits is swapped."""
    return 0.0


def engine_over(
    model: Decoder,
    num_blocks: int = 100,
    grammars: GrammarCompiler | None = None,
    clock: Callable[[], float] = time.monotonic,
    **settings: int | bool,
) -> tuple[LLMEngine, torch.Tensor]:
    """An engine that checks its invariants after each step, and its pool."""
    config = EngineConfig(
        model_dir=Path("unused"),
        check_invariants=True,
        **settings,  # type: ignore[arg-type]
    )
    pool = allocate_pool(model.config, num_blocks, config.block_size, torch.float32)
    return LLMEngine(model, pool, config, ChainHasher("tiny", config.block_size), grammars, clock), pool
