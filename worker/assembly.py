"""Builds the parts of a worker: model, KV pool, engine, transports, identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.api import Engine
from engine.core import LLMEngine
from engine.kv.storage import allocate_pool, block_bytes, blocks_in_budget
from engine.models.config import ModelConfig
from engine.models.loader import load_model, torch_dtype
from engine.models.revision import model_revision
from kv_transfer import registry
from kv_transfer.transports.base import Transport, TransportConfig
from kv_transfer.types import Identity, KvLayout, LayerGroup, PoolRegion
from prefix_index.hashing import HASH_VERSION, ChainHasher, hash_model
from worker.config import WorkerConfig


@dataclass(frozen=True, slots=True)
class Assembly:
    """A worker's parts.

    Attributes:
        engine: over a pool that every transport has registered.
        identity: what a peer must share.
        layout: of the pool.
        transports: by name, best first.
        max_model_len: tokens of prompt and answer together.
    """

    engine: Engine
    identity: Identity
    layout: KvLayout
    transports: Mapping[str, Transport]
    max_model_len: int

    @property
    def max_context_tokens(self) -> int:
        """Longest context after which a token can still be drawn."""
        return self.max_model_len - 1


def assemble(config: WorkerConfig) -> Assembly:
    """Builds everything; takes as long as the weights take to load.

    Raises:
        ModelError: the folder or the dtype cannot be used.
        KvMemoryError: the pool does not fit.
        ValueError: an unknown transport, attention backend, quantization or ops, or limits that exceed the model's.
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
        kernel_cache=settings.kernel_cache,
    )
    dtype = torch_dtype(settings.dtype)
    bytes_per_block = block_bytes(model.config, settings.block_size, dtype)
    num_blocks = settings.num_blocks or blocks_in_budget(settings.kv_memory_bytes, bytes_per_block)
    pool = allocate_pool(model.config, num_blocks, settings.block_size, dtype, settings.device)
    revision = model_revision(settings.model_dir, settings.quantization)
    hasher = ChainHasher(hash_model(config.model_name, revision), settings.block_size)
    engine = LLMEngine(model, pool, settings, hasher)
    region = PoolRegion(pool.data_ptr(), pool.shape[0], bytes_per_block, pool)
    return Assembly(
        engine=engine,
        identity=_identity(config, model.config, revision),
        layout=KvLayout(
            tensor_parallel_size=1,
            first_head=0,
            num_heads=model.config.num_kv_heads,
            block_bytes=bytes_per_block,
        ),
        transports=_open_transports(config, region),
        max_model_len=engine.max_model_len,
    )


def _identity(config: WorkerConfig, model: ModelConfig, revision: str) -> Identity:
    group = LayerGroup(
        name="attention",
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
    )
    return Identity(
        model=config.model_name,
        revision=revision,
        dtype=config.engine.dtype,
        block_size=config.engine.block_size,
        layer_groups=(group,),
        draft="",
        hash_version=HASH_VERSION,
    )


def _open_transports(config: WorkerConfig, region: PoolRegion) -> dict[str, Transport]:
    transports: dict[str, Transport] = {}
    for name in config.transports:
        transport = registry.create(name, TransportConfig(config.worker_id, config.incarnation, config.host))
        transport.register(region)
        transports[name] = transport
    return transports
