"""What one engine answers by itself: the reference for every other way."""

from __future__ import annotations

from pathlib import Path

from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.kv.storage import allocate_pool
from engine.models.loader import load_model, torch_dtype
from kvrelay.v1 import worker_pb2
from prefix_index.hashing import ChainHasher
from worker.requests import engine_request


def aggregated_tokens(
    model_dir: Path, request: worker_pb2.WorkRequest, max_model_len: int = 1024
) -> list[int]:
    """Runs a request on a fresh engine; resumed tokens are not part of the answer."""
    config = EngineConfig(
        model_dir=model_dir, num_blocks=max_model_len // 16 + 32, max_model_len=max_model_len
    )
    model = load_model(model_dir)
    pool = allocate_pool(model.config, config.num_blocks, config.block_size, torch_dtype(config.dtype))
    engine = LLMEngine(model, pool, config, ChainHasher("reference", config.block_size))
    engine.submit(engine_request(request))
    tokens: list[int] = []
    while engine.has_work():
        tokens.extend(token.token_id for token in engine.step().tokens)
    return tokens
