"""The arithmetic of an EAGLE head: what follows from a token and from what the model made of those before.

The entry of position j reads token j and the feature of position j - 1: in EAGLE-3 residual streams of three
of the model's layers, in EAGLE-1 what its LM head sees. Beyond what the model has computed, the head's own
output takes the feature's place. Its KV lies in the model's blocks, at slot j, in layers of their own; slot 0
has no entry.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.attention.registry import create_backend
from engine.models.base import SharedParts
from engine.models.batch import ForwardBatch
from engine.models.config import ModelConfig
from engine.models.layer_groups import layers_per_block
from engine.models.layers import LayerRunner
from engine.models.rotary import Rotary
from engine.ops.buffers import Buffers
from engine.speculation.eagle.config import EagleConfig, Generation
from engine.speculation.eagle.weights import EagleWeights


class EagleHead:
    """One head.

    Args:
        config: of the head.
        weights: of the head.
        shared: of the model.
        target: the model's config.
        attention_backend: file name in `engine/attention/`, or "auto".
    """

    def __init__(
        self,
        config: EagleConfig,
        weights: EagleWeights,
        shared: SharedParts,
        target: ModelConfig,
        attention_backend: str,
    ) -> None:
        self.config = config
        self.target_ids = weights.target_ids
        self._weights = weights
        self._ops = shared.ops
        self._softcap = target.logit_softcap if config.generation is Generation.ONE else 0.0
        # A block has the model's layers first. The head's KV lies in those of the longest history.
        groups = target.layer_groups
        self.num_groups = len(groups)
        self.first_layer = layers_per_block(groups)
        windows = (groups[0].window,) * (self.first_layer + config.layers.num_layers)
        placed = replace(config.layers, num_layers=len(windows), windows=windows)
        self._attention = create_backend(attention_backend, placed, shared.ops)
        self._layers = LayerRunner(config.layers, shared.ops, self._attention, self.first_layer)
        embedding = weights.embedding
        self._rotary = Rotary(config.layers.ropes, embedding.device)
        self._streams = Buffers(embedding.dtype, embedding.device)
        self._embedded = Buffers(embedding.dtype, embedding.device)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """What an entry reads of the model's features [T, points' width]: [T, H], for `forward`."""
        if self.config.generation is Generation.ONE:
            return features
        norms = self._weights.feature_norms
        if norms:
            parts = features.chunk(len(norms), dim=-1)
            normed = [self._ops.rms_norm(part, norm) for part, norm in zip(parts, norms, strict=True)]
            features = torch.cat(normed, dim=-1)
        return self._ops.linear(features, self._weights.fuse)

    def forward(self, batch: ForwardBatch, hidden: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Writes the entries' KV.

        Args:
            batch: tokens and places of the entries.
            hidden: [T, H], fused features or outputs of earlier entries.
            kv: the pool.

        Returns:
            [R, H] for the batch's `logits_rows`: what `logits` takes, and what a following entry reads in
            place of a feature. The next call overwrites it, unless it is given it.
        """
        weights = self._weights
        stream, embedded = self._inputs(batch.token_ids, hidden)
        angles = self._rotary.angles(batch.positions)
        self._attention.begin(batch, kv)
        self._layers.run(weights.layers, stream, angles, embedded=embedded)
        # One row of each sequence: where there are as many as tokens they are all of them.
        whole = len(batch.logits_rows) == len(stream)
        outputs = stream if whole else stream.index_select(0, batch.logits_rows)
        if self.config.norm_output and weights.final_norm is not None:
            return self._ops.rms_norm(outputs, weights.final_norm)
        return outputs

    def _inputs(self, token_ids: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual stream and the tokens' embeddings, each [T, H], where they lay before."""
        weights, ops = self._weights, self._ops
        stream, _ = self._streams.get(*hidden.shape)
        embedded, _ = self._embedded.get(*hidden.shape)
        torch.index_select(weights.embedding, 0, token_ids, out=embedded)
        if self.config.generation is Generation.ONE:
            hidden = ops.linear(torch.cat((embedded, hidden), dim=-1), weights.fuse)
        elif weights.stream_norm is not None:
            hidden = ops.rms_norm(hidden, weights.stream_norm)
        stream.copy_(hidden)
        return stream, embedded

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits of the token after each entry, [R, draft vocabulary] fp32, from outputs [R, H]."""
        norm = None if self.config.norm_output else self._weights.final_norm
        logits = self._ops.linear(outputs, self._weights.lm_head, norm=norm)
        return (torch.tanh(logits / self._softcap) * self._softcap if self._softcap else logits).float()

    def to_target(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """The model's tokens of what was drafted, shape as given."""
        return draft_ids if self.target_ids is None else self.target_ids[draft_ids]
