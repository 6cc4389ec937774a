"""The decoder that the families share: pre-norm layers, rotary grouped-query attention, gated feed-forward.

Written once, over `engine.ops.base.Ops` and an attention backend. Query, key and value are one matrix, and
so are gate and up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.attention.base import AttentionBackend
from engine.models.batch import ForwardBatch
from engine.models.config import ModelConfig
from engine.ops.base import Activation, Linear, Norm, Ops


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. H hidden, Q heads * head_dim, K kv_heads * head_dim, I intermediate.

    Attributes:
        input_norm: over H.
        qkv: H to Q + 2 K, biased where the model is.
        output: Q to H.
        post_attention_norm: over H.
        gate_up: H to 2 I.
        down: I to H.
    """

    input_norm: Norm
    qkv: Linear
    output: Linear
    post_attention_norm: Norm
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights. `embedding` is [V, H]; `lm_head` goes from H to V."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Norm
    lm_head: Linear


class Rotary:
    """Angles of rotary position embedding."""

    def __init__(self, head_dim: int, theta: float, device: torch.device) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        self._inverse_frequencies = (1.0 / theta**exponents).to(device)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine for positions [T], each [T, head_dim / 2], fp32."""
        angles = positions[:, None].float() * self._inverse_frequencies
        return angles.cos(), angles.sin()


class Decoder:
    """A decoder-only model over a paged KV pool; implements `engine.models.base.CausalLM`."""

    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, ops: Ops, attention: AttentionBackend
    ) -> None:
        self.config = config
        self._weights = weights
        self._ops = ops
        self._attention = attention
        self._rotary = Rotary(config.head_dim, config.rope_theta, weights.embedding.device)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv: torch.Tensor) -> torch.Tensor:
        """Writes the batch's KV into `kv` and returns fp32 logits [R, vocab_size].

        `kv` is the pool, [blocks, layers, 2, kv_heads, block_size, head_dim], block 0 being scratch.
        """
        config, ops = self.config, self._ops
        hidden = self._weights.embedding.index_select(0, batch.token_ids)
        cos, sin = self._rotary.angles(batch.positions)
        self._attention.begin(batch, kv)
        keys_at = config.num_heads
        values_at = config.num_heads + config.num_kv_heads
        for index, layer in enumerate(self._weights.layers):
            qkv = ops.linear(hidden, layer.qkv, norm=layer.input_norm)
            heads = qkv.view(hidden.shape[0], -1, config.head_dim)
            ops.rotate(heads, cos, sin, config.num_heads, config.num_kv_heads)
            attended = self._attention.attend(
                index, heads[:, :keys_at], heads[:, keys_at:values_at], heads[:, values_at:]
            )
            ops.linear(attended, layer.output, residual=hidden)
            gate_up = ops.linear(hidden, layer.gate_up, norm=layer.post_attention_norm)
            ops.linear(ops.gated(gate_up, Activation.SILU), layer.down, residual=hidden)
        last = hidden.index_select(0, batch.logits_rows)
        return ops.linear(last, self._weights.lm_head, norm=self._weights.final_norm).float()
