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
from engine.models.features import FeatureTap
from engine.models.moe import ExpertsWeights, run_experts
from engine.models.rotary import Rotary
from engine.ops.base import HeadNorms, Linear, Norm, Ops


@dataclass(frozen=True, slots=True)
class FeedForwardWeights:
    """One gated feed-forward. H hidden, I intermediate.

    Attributes:
        gate_up: H to 2 I, from `Ops.pack_gated`.
        down: I to H.
    """

    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. H hidden, Q heads * head_dim, K kv_heads * head_dim.

    Attributes:
        input_norm: over H.
        qkv: H to Q + 2 K.
        head_norms: over single query and key heads; None where the family has none.
        output: Q to H.
        attention_post_norm: of attention's result, over H; None where the family has none.
        feed_forward_norm: over H.
        feed_forward: of the layer, or its experts.
        feed_forward_post_norm: of the feed-forward's result, over H; None where the family has none.
    """

    input_norm: Norm
    qkv: Linear
    head_norms: HeadNorms | None
    output: Linear
    attention_post_norm: Norm | None
    feed_forward_norm: Norm
    feed_forward: FeedForwardWeights | ExpertsWeights
    feed_forward_post_norm: Norm | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights. `embedding` is [V, H]; `lm_head` goes from H to V."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Norm
    lm_head: Linear


class Decoder:
    """A decoder-only model over a paged KV pool; implements `engine.models.base.CausalLM`."""

    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, ops: Ops, attention: AttentionBackend
    ) -> None:
        self.config = config
        self._weights = weights
        self._ops = ops
        self._attention = attention
        self._rotary = Rotary(config.ropes, weights.embedding.device)
        # Rounded to the embedding's dtype before it is applied, as these models were trained.
        self._embedding_scale = float(torch.tensor(config.embedding_scale).to(weights.embedding.dtype))

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv: torch.Tensor, tap: FeatureTap | None = None) -> torch.Tensor:
        """As `CausalLM.forward`."""
        hidden = self._weights.embedding.index_select(0, batch.token_ids)
        if self._embedding_scale != 1.0:
            hidden *= self._embedding_scale
        angles = self._rotary.angles(batch.positions)
        self._attention.begin(batch, kv)
        for index, layer in enumerate(self._weights.layers):
            if tap is not None:
                tap.entering(index, hidden)
            self._attend(index, layer, hidden, *angles[index])
            self._feed_forward(layer, hidden)
        if tap is not None:
            tap.entering(self.config.num_layers, hidden)
            if tap.points.final:
                tap.final(self._ops.rms_norm(hidden, self._weights.final_norm))
        last = hidden.index_select(0, batch.logits_rows)
        logits = self._ops.linear(last, self._weights.lm_head, norm=self._weights.final_norm)
        softcap = self.config.logit_softcap
        return (logits.div_(softcap).tanh_().mul_(softcap) if softcap else logits).float()

    def _attend(
        self, index: int, layer: LayerWeights, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> None:
        """Adds the layer's attention to `hidden`, [T, H]."""
        config, ops = self.config, self._ops
        qkv = ops.linear(hidden, layer.qkv, norm=layer.input_norm)
        heads = qkv.view(hidden.shape[0], -1, config.head_dim)
        ops.rotate(heads, cos, sin, config.num_heads, config.num_kv_heads, layer.head_norms)
        keys_at, values_at = config.num_heads, config.num_heads + config.num_kv_heads
        attended = self._attention.attend(
            index, heads[:, :keys_at], heads[:, keys_at:values_at], heads[:, values_at:]
        )
        self._project(attended, layer.output, layer.attention_post_norm, hidden)

    def _feed_forward(self, layer: LayerWeights, hidden: torch.Tensor) -> None:
        """Adds the layer's feed-forward to `hidden`, [T, H]."""
        ops, weights, activation = self._ops, layer.feed_forward, self.config.activation
        if isinstance(weights, ExpertsWeights):
            hidden += run_experts(ops, weights, ops.rms_norm(hidden, layer.feed_forward_norm), activation)
            return
        gated = ops.gated_linear(hidden, weights.gate_up, activation, norm=layer.feed_forward_norm)
        self._project(gated, weights.down, layer.feed_forward_post_norm, hidden)

    def _project(
        self, inner: torch.Tensor, linear: Linear, post_norm: Norm | None, hidden: torch.Tensor
    ) -> None:
        if post_norm is None:
            self._ops.linear(inner, linear, residual=hidden)
        else:
            hidden += self._ops.rms_norm(self._ops.linear(inner, linear), post_norm)
