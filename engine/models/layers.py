"""The layer that decoders share, and EAGLE's heads: rotary grouped-query attention, gated feed-forward.

Written once, over `engine.ops.base.Ops` and an attention backend. Query, key and value are one matrix, and
so are gate and up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from engine.attention.base import AttentionBackend
from engine.models.config import ModelConfig
from engine.models.features import FeatureTap
from engine.models.moe import ExpertsWeights, run_experts
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
class EmbeddingInput:
    """What query, key and value also are of: the normed embeddings of the tokens.

    Attributes:
        norm: over embeddings.
        qkv: H to Q + 2 K.
    """

    norm: Norm
    qkv: Linear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. H hidden, Q heads * head_dim, K kv_heads * head_dim.

    Attributes:
        input_norm: over H; None where there is none.
        qkv: H to Q + 2 K.
        head_norms: over single query and key heads; None where the family has none.
        output: Q to H.
        attention_post_norm: of attention's result, over H; None where the family has none.
        feed_forward_norm: over H.
        feed_forward: of the layer, or its experts.
        feed_forward_post_norm: of the feed-forward's result, over H; None where the family has none.
        embedding_input: of the first layer of an EAGLE-3 head; None where there is none.
    """

    input_norm: Norm | None
    qkv: Linear
    head_norms: HeadNorms | None
    output: Linear
    attention_post_norm: Norm | None
    feed_forward_norm: Norm
    feed_forward: FeedForwardWeights | ExpertsWeights
    feed_forward_post_norm: Norm | None
    embedding_input: EmbeddingInput | None = None


Angles = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Cosine and sine of each layer, see `engine.models.rotary`."""


class LayerRunner:
    """Computes layers, and their halves.

    Args:
        config: tells of heads and activation.
        ops: computes.
        attention: of these layers.
        first_layer: layers of the pool before those that are run.
    """

    def __init__(
        self, config: ModelConfig, ops: Ops, attention: AttentionBackend, first_layer: int = 0
    ) -> None:
        self._config = config
        self._ops = ops
        self._attention = attention
        self._first_layer = first_layer
        self._tape = ops.tape()

    def run(
        self,
        layers: Sequence[LayerWeights],
        hidden: torch.Tensor,
        angles: Angles,
        *,
        embedded: torch.Tensor | None = None,
        tap: FeatureTap | None = None,
    ) -> None:
        """Takes `hidden`, [T, H], through all layers, always the same ones, in place.

        Quickest where the tensors lie where they lay in an earlier call, with as many rows.

        Args:
            layers: one or more.
            hidden: the residual stream.
            angles: of each layer.
            embedded: [T, H], for layers that have an `embedding_input`.
            tap: gets what enters layers.
        """

        def compute() -> None:
            for index, layer in enumerate(layers):
                if tap is not None:
                    tap.entering(index, hidden, self._ops)
                self.attend(index, layer, hidden, *angles[index], embedded)
                self.feed_forward(layer, hidden)
            if tap is not None:
                tap.entering(len(layers), hidden, self._ops)

        # Which experts run depends on what is computed.
        if any(isinstance(layer.feed_forward, ExpertsWeights) for layer in layers):
            compute()
            return
        used = dict.fromkeys(chain.from_iterable(angles))
        if embedded is not None:
            used[embedded] = None
        if tap is not None:
            used[tap.out] = None
        self._tape.play(None if tap is None else tap.points, (hidden, *used), compute)

    def attend(
        self,
        index: int,
        layer: LayerWeights,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        embedded: torch.Tensor | None = None,
    ) -> None:
        """Adds the attention of layer `index` to `hidden`, [T, H]; `embedded` is as in `run`."""
        config, ops = self._config, self._ops
        qkv = ops.linear(hidden, layer.qkv, norm=layer.input_norm)
        if layer.embedding_input is not None:
            assert embedded is not None
            ops.linear(embedded, layer.embedding_input.qkv, norm=layer.embedding_input.norm, residual=qkv)
        heads = qkv.view(hidden.shape[0], -1, config.head_dim)
        ops.rotate(heads, cos, sin, config.num_heads, config.num_kv_heads, layer.head_norms)
        keys_at, values_at = config.num_heads, config.num_heads + config.num_kv_heads
        attended = self._attention.attend(
            self._first_layer + index, heads[:, :keys_at], heads[:, keys_at:values_at], heads[:, values_at:]
        )
        self._project(attended, layer.output, layer.attention_post_norm, hidden)

    def feed_forward(self, layer: LayerWeights, hidden: torch.Tensor) -> None:
        """Adds the layer's feed-forward to `hidden`, [T, H]."""
        ops, weights, activation = self._ops, layer.feed_forward, self._config.activation
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
            self._ops.add_normed(hidden, self._ops.linear(inner, linear), post_norm)
