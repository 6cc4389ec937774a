"""What the engine asks of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.models.batch import ForwardBatch
from engine.models.config import ModelConfig
from engine.models.features import FeatureTap
from engine.ops.base import Linear, Ops


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What a draft head has in common with its model.

    Attributes:
        ops: that the model is computed with.
        embedding: [V, H], unscaled.
        lm_head: H to V, laid out for `ops`.
    """

    ops: Ops
    embedding: torch.Tensor
    lm_head: Linear


class CausalLM(Protocol):
    """A decoder-only model over a paged KV pool."""

    config: ModelConfig

    def forward(self, batch: ForwardBatch, kv: torch.Tensor, tap: FeatureTap | None = None) -> torch.Tensor:
        """Writes the batch's KV into `kv` and returns fp32 logits [R, vocab_size].

        Args:
            batch: the new tokens.
            kv: the pool, [blocks, layers, 2, kv_heads, block_size, head_dim], block 0 being scratch; the
                layers of a block are those of one group.
            tap: gets the features of all tokens of the batch.
        """
        ...


class DraftedLM(CausalLM, Protocol):
    """A model that draft heads can be loaded for."""

    def shared(self) -> SharedParts:
        """What a draft head has in common with the model."""
        ...
