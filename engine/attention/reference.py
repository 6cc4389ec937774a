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
                seen = self._seen(layer, sequence, token)
                scores = torch.einsum("hd,chd->hc", query[token].float(), keys[seen]) * self._scale
                if self._softcap:
                    scores = self._softcap * torch.tanh(scores / self._softcap)
                weights = torch.softmax(scores, dim=-1)
                output[token] = torch.einsum("hc,chd->hd", weights, values[seen]).to(query.dtype)
        return output.flatten(1)

    def _seen(self, layer: int, sequence: int, token: int) -> list[int]:
        """The tokens of its context that a row of the batch attends to."""
        batch, window = self._batch, self._windows[layer]
        start, end = batch.query_starts[sequence], batch.query_starts[sequence + 1]
        context = batch.context_lens[sequence]
        first = 0 if batch.first_keys is None else batch.first_keys[sequence]
        bits = 0 if batch.visible is None else int(batch.visible[token])
        last = context - (end - token)
        if not bits:
            return list(range(max(first, last + 1 - window if window else 0), last + 1))
        tree = context - (end - start) if batch.tree_starts is None else batch.tree_starts[sequence]
        oldest = int(batch.positions[token]) + 1 - window if window else 0
        return [
            *range(max(first, oldest), tree),
            *(key for key in range(tree, context) if bits >> (key - tree) & 1),
        ]


def create(config: ModelConfig, ops: Ops, coarse: bool) -> AttentionBackend:
    """Makes the reference backend."""
    return ReferenceAttention(config)
