"""What one engine answers by itself: the reference for every other way."""

from __future__ import annotations

from pathlib import Path

from engine.api import StepOutput
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.grammar.guidance import GuidanceCompiler
from engine.kv.storage import allocate_pool
from engine.models.loader import load_model, torch_dtype
from kvrelay.v1 import worker_pb2
from prefix_index.hashing import ChainHasher
from worker.requests import engine_request


def aggregated_tokens(
    model_dir: Path, request: worker_pb2.WorkRequest, max_model_len: int = 1024
) -> list[int]:
    """Runs a request on a fresh engine; resumed tokens are not part of the answer."""
    outputs = aggregated_outputs(model_dir, request, max_model_len)
    return [token.token_id for output in outputs for token in output.tokens]


def aggregated_outputs(
    model_dir: Path, request: worker_pb2.WorkRequest, max_model_len: int = 1024
) -> list[StepOutput]:
    """As `aggregated_tokens`, with all that the engine says."""
    model = load_model(model_dir)
    config = EngineConfig(
        model_dir=model_dir,
        num_blocks=(max_model_len // 16 + 32) * len(model.config.layer_groups),
        max_model_len=max_model_len,
    )
    pool = allocate_pool(model.config, config.num_blocks, config.block_size, torch_dtype(config.dtype))
    tokenizer = model_dir / "tokenizer.json"
    grammars = None
    if tokenizer.exists():
        grammars = GuidanceCompiler(tokenizer, model.config.vocab_size, model.config.eos_token_ids)
    engine = LLMEngine(model, pool, config, ChainHasher("reference", config.block_size), grammars)
    engine.submit(engine_request(request))
    outputs: list[StepOutput] = []
    while engine.has_work():
        outputs.append(engine.step())
    if grammars is not None:
        grammars.close()
    return outputs
