"""What an engine is told at start. Model shapes are `engine.models.config`'s."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.speculation.config import NO_SPECULATION, SpeculationConfig

MAX_DECODE_SLOWDOWN = 1.35
"""Keeps p99 TPOT within 1.5 times its value without prompts, with some room for wrong estimates."""

DECODE_SLOWDOWN_LIMIT = 1000
"""Greatest `max_decode_slowdown`: a bound beyond it is none, which 0 says."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine.

    Attributes:
        model_dir: Hugging Face folder.
        dtype: "float32" or "bfloat16", of weights, activations and KV.
        block_size: tokens in a KV block.
        num_blocks: blocks in the pool, the scratch block not counted; 0 derives it from `kv_memory_bytes`.
        kv_memory_bytes: size of the pool where `num_blocks` is 0.
        max_model_len: tokens of prompt and answer together; 0 takes the model's own limit, or the
            pool's size where that is less.
        max_batched_tokens: token budget of one step, decodes first, then prefill chunks.
        max_running: most sequences in one step.
        prefill_chunk: most prompt tokens of one sequence in one step.
        max_decode_slowdown: a step with prompt tokens takes at most so many times as long as it would
            without them, by estimate, while sequences decode that ran before those prompts came; 1 to
            1000, 0 for no bound. Lower protects TPOT, higher brings prompts in sooner.
        swap_memory_bytes: host memory for the KV of preempted sequences; 0 has it computed again always.
        threads: torch intra-op threads; 0 leaves torch's default.
        enable_prefix_cache: whether finished blocks are kept for prefix hits.
        check_invariants: run `check_invariants()` after each step (debug mode).
        ops: name in `engine.ops.registry`: who computes the layers.
        quantization: name in `engine.quantization.registry`: how the linear layers' weights are stored.
        attention_backend: file name in `engine/attention/`, or "auto".
        kernel_cache: folder for kernels that are built at run time; None is `engine.ops.cpu.build`'s.
        device: torch device.
        speculation: how tokens are guessed ahead.
    """

    model_dir: Path
    dtype: str = "float32"
    block_size: int = 16
    num_blocks: int = 0
    kv_memory_bytes: int = 1 << 30
    max_model_len: int = 0
    max_batched_tokens: int = 512
    max_running: int = 64
    prefill_chunk: int = 256
    max_decode_slowdown: float = MAX_DECODE_SLOWDOWN
    swap_memory_bytes: int = 1 << 29
    threads: int = 0
    enable_prefix_cache: bool = True
    check_invariants: bool = False
    ops: str = "auto"
    quantization: str = "none"
    attention_backend: str = "auto"
    kernel_cache: Path | None = None
    device: str = "cpu"
    speculation: SpeculationConfig = NO_SPECULATION
