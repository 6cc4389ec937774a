"""The plain reference: one sequence and one token at a time, in fp32. Slow, and obviously right."""

from __future__ import annotations

import torch

from engine.attention.base import AttentionBackend
from engine.models.batch import ForwardBatch
from engine.models.config import ModelConfig
from engine.models.layer_groups import places
from engine.ops.base import Ops


class ReferenceAttention:
    """Follows the definition: softmax(softcap(scale * q k)) v over a token's past or its window."""

    def __init__(self, config: ModelConfig) -> None:
        self._group = config.num_heads // config.num_kv_heads
        self._scale = config.attention_scale
        self._softcap = config.attention_softcap
        self._windows = config.windows
        self._places = places(config.layer_groups)

    def begin(self, batch: ForwardBatch, kv: torch.Tensor) -> None:
        """Keeps the step's batch and pool."""
        self._batch = batch
        self._kv = kv

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Stores key and value, then attends; see `AttentionBackend`."""
        batch = self._batch
        group, place = self._places[layer]
        pool = self._kv[:, place]
        block_size = pool.shape[3]
        for token, slot in enumerate(batch.slots[group].tolist()):
            block, offset = divmod(slot, block_size)
            pool[block, 0, :, offset] = key[token]
            pool[block, 1, :, offset] = value[token]
        output = torch.empty_like(query)
        for sequence, context in enumerate(batch.context_lens):
            start, end = batch.query_starts[sequence], batch.query_starts[sequence + 1]
            past = torch.arange(context, device=pool.device)
            blocks = batch.block_tables[group, sequence, past // block_size]
            keys = pool[blocks, 0, :, past % block_size].float().repeat_interleave(self._group, dim=1)
            values = pool[blocks, 1, :, past % block_size].float().repeat_interleave(self._group, dim=1)
            for token in range(start, end):
                last = context - (end - 1 - token)
                first = max(0, last - self._windows[layer]) if self._windows[layer] else 0
                scores = torch.einsum("hd,chd->hc", query[token].float(), keys[first:last]) * self._scale
                if self._softcap:
                    scores = self._softcap * torch.tanh(scores / self._softcap)
                weights = torch.softmax(scores, dim=-1)
                output[token] = torch.einsum("hc,chd->hd", weights, values[first:last]).to(query.dtype)
        return output.flatten(1)


def create(config: ModelConfig, ops: Ops) -> AttentionBackend:
    """Makes the reference backend."""
    return ReferenceAttention(config)
