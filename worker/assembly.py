"""Builds the parts of a worker: model, KV pool, engine, transports, identity."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.api import Engine
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.grammar.base import GrammarCompiler
from engine.grammar.guidance import GuidanceCompiler
from engine.kv.storage import SCRATCH_BLOCKS, allocate_pool, block_bytes, blocks_in_budget
from engine.models.config import ModelConfig
from engine.models.cores import leave_cores_to_kernels
from engine.models.loader import load_model, torch_dtype
from engine.models.revision import model_revision
from engine.speculation.assembly import make_speculator
from engine.speculation.choice import NO_DRAFTERS
from engine.speculation.registry import draft_layers, reads_features
from engine.speculation.revision import draft_revision
from kv_transfer import registry
from kv_transfer.transports.base import Transport, TransportConfig
from kv_transfer.types import Identity, KvLayout, LayerGroup, PoolRegion
from prefix_index.hashing import HASH_VERSION, ChainHasher, hash_model
from telemetry.logs import fields
from worker.config import WorkerConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assembly:
    """A worker's parts.

    Attributes:
        engine: over a pool that every transport has registered.
        identity: what a peer must share.
        layout: of the pool.
        transports: by name, best first.
        max_model_len: tokens of prompt and answer together.
        grammars: compiles for the engine; None where the model folder has no usable tokenizer.json.
        model_context_tokens: what the model itself can take.
        draft_methods: what requests may name, the deployment's method first; empty where nothing is decoded.
    """

    engine: Engine
    identity: Identity
    layout: KvLayout
    transports: Mapping[str, Transport]
    max_model_len: int
    grammars: GrammarCompiler | None
    model_context_tokens: int
    draft_methods: tuple[str, ...]

    @property
    def max_context_tokens(self) -> int:
        """Longest context after which a token can still be drawn."""
        return self.max_model_len - 1


def assemble(config: WorkerConfig) -> Assembly:
    """Builds everything; takes as long as the weights take to load.

    Raises:
        ModelError: the folder, the dtype, or the draft model or head cannot be used.
        KvMemoryError: the pool does not fit.
        ValueError: an unknown transport, attention backend, quantization, ops or draft method, limits that
            exceed the model's, or a setting of speculation that cannot be honoured.
    """
    settings = config.engine
    if settings.threads:
        torch.set_num_threads(settings.threads)
    model = load_model(
        settings.model_dir,
        dtype=settings.dtype,
        ops=settings.ops,
        quantization=settings.quantization,
        attention_backend=settings.attention_backend,
        device=settings.device,
        context_length=settings.max_model_len,
        kernel_cache=settings.kernel_cache,
    )
    leave_cores_to_kernels(model)
    dtype = torch_dtype(settings.dtype)
    extra_layers = draft_layers(settings.speculation, model.config)
    bytes_per_block = block_bytes(model.config, settings.block_size, dtype, extra_layers)
    num_groups = len(model.config.layer_groups)
    num_blocks = settings.num_blocks or blocks_in_budget(
        settings.kv_memory_bytes, bytes_per_block, num_groups
    )
    pool = allocate_pool(model.config, num_blocks, settings.block_size, dtype, settings.device, extra_layers)
    revision = model_revision(settings.model_dir, settings.quantization, settings.max_model_len)
    hasher = ChainHasher(hash_model(config.model_name, revision), settings.block_size)
    grammars = _grammars(config, model.config)
    hands_over = reads_features(settings.speculation)
    speculates = config.decodes or hands_over
    speculator = make_speculator(model, pool, settings, grammars) if speculates else None
    drafters = NO_DRAFTERS if speculator is None else speculator.drafters
    engine = LLMEngine(model, pool, settings, hasher, grammars, speculator=speculator)
    _warn_of_short_context(settings, model.config, num_blocks, bytes_per_block)
    draft = draft_revision(settings.speculation) if hands_over else ""
    region = PoolRegion(pool.data_ptr(), pool.shape[0], bytes_per_block, pool)
    return Assembly(
        engine=engine,
        identity=_identity(config, model.config, revision, draft),
        layout=KvLayout(
            tensor_parallel_size=1,
            first_head=0,
            num_heads=model.config.num_kv_heads,
            block_bytes=bytes_per_block,
        ),
        transports=_open_transports(config, region),
        max_model_len=engine.max_model_len,
        model_context_tokens=model.config.max_position_embeddings,
        grammars=grammars,
        draft_methods=drafters.methods if config.decodes else (),
    )


def _warn_of_short_context(
    settings: EngineConfig, model: ModelConfig, num_blocks: int, bytes_per_block: int
) -> None:
    """A context that the pool cuts short is no error, but nobody should have to find it out by a refusal."""
    wanted, num_groups = model.max_position_embeddings, len(model.layer_groups)
    held = num_blocks // num_groups * settings.block_size
    if settings.max_model_len or held >= wanted:
        return
    needed = (-(-wanted // settings.block_size) * num_groups + SCRATCH_BLOCKS) * bytes_per_block
    logger.warning(
        f"the KV pool holds {held} tokens, so prompt and answer together can have no more, though the model "
        f"takes {wanted}: a KV memory of {needed} bytes would hold them",
        extra=fields(pool_tokens=held, model_tokens=wanted, needed_bytes=needed),
    )


def _grammars(config: WorkerConfig, model: ModelConfig) -> GrammarCompiler | None:
    tokenizer_file = config.engine.model_dir / "tokenizer.json"
    try:
        return GuidanceCompiler(
            tokenizer_file, model.vocab_size, model.eos_token_ids, max(1, config.engine.threads)
        )
    except ValueError as error:
        logger.warning("no grammars", extra=fields(reason=str(error)))
        return None


def _identity(config: WorkerConfig, model: ModelConfig, revision: str, draft: str) -> Identity:
    several = len(model.layer_groups) > 1
    groups = tuple(
        LayerGroup(
            name=f"attention.{index}" if several else "attention",
            num_layers=len(group.layers),
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            sliding_window=group.window,
        )
        for index, group in enumerate(model.layer_groups)
    )
    return Identity(
        model=config.model_name,
        revision=revision,
        dtype=config.engine.dtype,
        block_size=config.engine.block_size,
        layer_groups=groups,
        draft=draft,
        hash_version=HASH_VERSION,
    )


def _open_transports(config: WorkerConfig, region: PoolRegion) -> dict[str, Transport]:
    transports: dict[str, Transport] = {}
    for name in config.transports:
        transport = registry.create(name, TransportConfig(config.worker_id, config.incarnation, config.host))
        transport.register(region)
        transports[name] = transport
    return transports
