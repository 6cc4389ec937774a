"""The decoder that the families share: embedding, layers, final norm, LM head."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.attention.base import AttentionBackend
from engine.models.base import SharedParts
from engine.models.batch import ForwardBatch
from engine.models.config import ModelConfig
from engine.models.features import FeatureTap
from engine.models.layers import LayerRunner, LayerWeights
from engine.models.rotary import Rotary
from engine.ops.base import Linear, Norm, Ops
from engine.ops.buffers import Buffers


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights. `embedding` is [V, H]; `lm_head` goes from H to V."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Norm
    lm_head: Linear


class Decoder:
    """A decoder-only model over a paged KV pool; implements `engine.models.base.DraftedLM`."""

    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, ops: Ops, attention: AttentionBackend
    ) -> None:
        self.config = config
        self._weights = weights
        self._ops = ops
        self._attention = attention
        self._layers = LayerRunner(config, ops, attention)
        self._hidden = Buffers(weights.embedding.dtype, weights.embedding.device)
        self._rotary = Rotary(config.ropes, weights.embedding.device)
        # Rounded to the embedding's dtype before it is applied, as these models were trained.
        self._embedding_scale = float(torch.tensor(config.embedding_scale).to(weights.embedding.dtype))

    def shared(self) -> SharedParts:
        """As `DraftedLM.shared`."""
        return SharedParts(self._ops, self._weights.embedding, self._weights.lm_head)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv: torch.Tensor, tap: FeatureTap | None = None) -> torch.Tensor:
        """As `CausalLM.forward`."""
        embedding = self._weights.embedding
        hidden, _ = self._hidden.get(len(batch.token_ids), self.config.hidden_size)
        torch.index_select(embedding, 0, batch.token_ids, out=hidden)
        if self._embedding_scale != 1.0:
            hidden *= self._embedding_scale
        angles = self._rotary.angles(batch.positions)
        self._attention.begin(batch, kv)
        self._layers.run(self._weights.layers, hidden, angles, tap=tap)
        if tap is not None and tap.points.final:
            tap.final(self._ops.rms_norm(hidden, self._weights.final_norm), self._ops)
        last = hidden.index_select(0, batch.logits_rows)
        logits = self._ops.linear(last, self._weights.lm_head, norm=self._weights.final_norm)
        softcap = self.config.logit_softcap
        return (logits.div_(softcap).tanh_().mul_(softcap) if softcap else logits).float()
