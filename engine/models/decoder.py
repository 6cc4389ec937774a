"""The decoder that the families share: pre-norm layers, rotary grouped-query attention, gated SiLU.

The arithmetic keeps transformers' order and precision (RMSNorm and rotary angles in fp32, then the
model's dtype), so that fp32 greedy tokens agree with it. Weights are stored transposed and contiguous,
(in, out), for `x @ weight`: on a CPU that is the faster form for the small batches of decoding. Query,
key and value are one matrix, and so are gate and up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.attention.base import AttentionBackend
from engine.models.batch import ForwardBatch
from engine.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. H hidden, Q heads * head_dim, K kv_heads * head_dim, I intermediate.

    Attributes:
        input_norm: [H].
        qkv: [H, Q + 2 K].
        qkv_bias: [Q + 2 K], where the model has it.
        output: [Q, H].
        post_attention_norm: [H].
        gate_up: [H, 2 I].
        down: [I, H].
    """

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    output: torch.Tensor
    post_attention_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights. `embedding` is [V, H], or None where it is tied to `lm_head`, [H, V]."""

    embedding: torch.Tensor | None
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    lm_head: torch.Tensor


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root mean square norm over the last dimension, computed in fp32 (Zhang and Sennrich, 2019)."""
    wide = hidden.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(hidden.dtype)


class Rotary:
    """Rotary position embedding, half-split form (Su et al., 2021, as in GPT-NeoX)."""

    def __init__(self, head_dim: int, theta: float, device: torch.device) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        self._inverse_frequencies = (1.0 / theta**exponents).to(device)

    def angles(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine for positions [T], each [T, 1, head_dim], computed in fp32."""
        half = positions[:, None].float() * self._inverse_frequencies
        full = torch.cat((half, half), dim=-1)[:, None]
        return full.cos().to(dtype), full.sin().to(dtype)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates [T, heads, head_dim] by the angles of its positions."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


class Decoder:
    """A decoder-only model over a paged KV pool; implements `engine.models.base.CausalLM`."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, attention: AttentionBackend) -> None:
        self.config = config
        self._weights = weights
        self._attention = attention
        self._rotary = Rotary(config.head_dim, config.rope_theta, weights.lm_head.device)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv: torch.Tensor) -> torch.Tensor:
        """Writes the batch's KV into `kv` and returns fp32 logits [R, vocab_size].

        `kv` is the pool, [blocks, layers, 2, kv_heads, block_size, head_dim], block 0 being scratch.
        """
        eps = self.config.rms_norm_eps
        hidden = self._embed(batch.token_ids)
        cos, sin = self._rotary.angles(batch.positions, hidden.dtype)
        self._attention.begin(batch, kv)
        for index, layer in enumerate(self._weights.layers):
            query, key, value = self._project(layer, rms_norm(hidden, layer.input_norm, eps), cos, sin)
            hidden = hidden + self._attention.attend(index, query, key, value) @ layer.output
            gate, up = (rms_norm(hidden, layer.post_attention_norm, eps) @ layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + (functional.silu(gate) * up) @ layer.down
        last = rms_norm(hidden.index_select(0, batch.logits_rows), self._weights.final_norm, eps)
        return (last @ self._weights.lm_head).float()

    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self._weights.embedding is None:
            return self._weights.lm_head.index_select(1, token_ids).t().contiguous()
        return self._weights.embedding.index_select(0, token_ids)

    def _project(
        self, layer: LayerWeights, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated query, rotated key, and value, each [T, its heads, head_dim]."""
        config = self.config
        bias = layer.qkv_bias
        qkv = normed @ layer.qkv if bias is None else torch.addmm(bias, normed, layer.qkv)
        heads = qkv.view(normed.shape[0], -1, config.head_dim)
        num_rotated = config.num_heads + config.num_kv_heads
        rotated = rotate(heads[:, :num_rotated], cos, sin)
        return rotated[:, : config.num_heads], rotated[:, config.num_heads :], heads[:, num_rotated:]
