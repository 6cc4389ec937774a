"""The attention seam: one signature for every backend."""

from __future__ import annotations

from typing import Protocol

import torch

from engine.models.batch import ForwardBatch


class AttentionBackend(Protocol):
    """Causal grouped-query attention over the paged pool.

    A backend is made once for each model and may keep preallocated buffers; `begin` is called once a
    step, `attend` once a layer. It honours what the model's config says of attention: the scale, the soft
    cap, and for each layer the window; and what the batch says of draft trees and of keys that are not there.
    Blocks wholly behind the window of all of a sequence's new tokens
    do not matter in that layer, whatever its block table names there.
    """

    def begin(self, batch: ForwardBatch, kv: torch.Tensor) -> None:
        """Prepares what all layers of this step share."""
        ...

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Stores key and value at the batch's slots, then attends.

        Args:
            layer: of the model. Its group and its place in the group's blocks say where its KV lies.
            query: [T, heads, head_dim], rotated.
            key: [T, kv_heads, head_dim], rotated.
            value: [T, kv_heads, head_dim].

        Returns:
            [T, heads * head_dim], in memory that the next call may overwrite.
        """
        ...
