"""The EAGLE-3 head (Li et al., 2025, https://arxiv.org/abs/2503.01840) as a module to train.

Modules are named as in its published checkpoints. The head's attention has the target's heads, so that its
KV fits the target's blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from engine.models.config import ModelConfig, Rope
from engine.models.rotary import inverse_frequencies


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Shapes of a head.

    Attributes:
        hidden_size: of the target and of the head.
        intermediate_size: of the head's feed-forward.
        num_heads: query heads.
        num_kv_heads: key-value heads.
        head_dim: of a head.
        num_features: layers of the target that it reads.
        draft_vocab_size: tokens that it can guess.
        tied: whether its LM head is the target's embedding, which is not trained.
        rms_norm_eps: of its norms.
        rope: its rotary embedding, of whole heads.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_features: int
    draft_vocab_size: int
    tied: bool
    rms_norm_eps: float
    rope: Rope

    @classmethod
    def like(cls, target: ModelConfig, num_features: int, draft_vocab_size: int, tied: bool) -> HeadConfig:
        """A head of its target's sizes."""
        return cls(
            target.hidden_size,
            target.intermediate_size,
            target.num_heads,
            target.num_kv_heads,
            target.head_dim,
            num_features,
            draft_vocab_size,
            tied,
            target.rms_norm_eps,
            target.ropes[0],
        )


class _Attention(nn.Module):
    """Projections alone: who attends to whom is the caller's matter. Inputs are 2 H wide."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(2 * hidden, config.num_heads * dim, bias=False)
        self.k_proj = nn.Linear(2 * hidden, config.num_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(2 * hidden, config.num_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * dim, hidden, bias=False)


class _FeedForward(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        inner = nn.functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden)
        output: torch.Tensor = self.down_proj(inner)
        return output


class _Layer(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        self.hidden_norm = nn.RMSNorm(hidden, eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)
        self.mlp = _FeedForward(config)


@dataclass(frozen=True, slots=True)
class LayerInput:
    """What the layer makes of N tokens before it attends.

    Attributes:
        query: [N, heads, head_dim], rotated; None where not asked for.
        key: [N, kv_heads, head_dim], rotated.
        value: [N, kv_heads, head_dim].
    """

    query: torch.Tensor | None
    key: torch.Tensor
    value: torch.Tensor


class Eagle3Head(nn.Module):
    """A fused feature, one layer, an LM head over the draft vocabulary.

    Attributes:
        config: its shapes.
        fc: from the features of one token, [3 H], to [H].
        midlayer: the layer.
        norm: before the LM head.
        lm_head: to the draft vocabulary.
        frequencies: [head_dim / 2], radians a token of each rotated pair.
        feature_scale: [3 H], factors on the features, of the training alone: it brings numbers that differ a
            hundredfold to one size, and is made part of `fc` when the head is exported.
    """

    feature_scale: torch.Tensor
    frequencies: torch.Tensor

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.num_features * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = _Layer(config)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.lm_head.weight.requires_grad_(not config.tied)
        scale = torch.ones(config.num_features * config.hidden_size)
        self.register_buffer("feature_scale", scale)
        self.register_buffer("frequencies", inverse_frequencies(config.rope), persistent=False)

    def turn(self, rope: Rope) -> None:
        """Rotates by other angles from now on."""
        self.config = replace(self.config, rope=rope)
        self.frequencies = inverse_frequencies(rope).to(self.frequencies.device)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """From the target's features, [N, 3 H] of any dtype, to [N, H]."""
        fused: torch.Tensor = self.fc(features.float() * self.feature_scale)
        return fused.float()

    def project(
        self, embedding: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, with_query: bool = True
    ) -> LayerInput:
        """Query, key and value of tokens.

        Args:
            embedding: [N, H] of the tokens.
            hidden: [N, H], the fused feature of the token before, or what the head made of that token.
            positions: [N].
            with_query: whether they attend.
        """
        layer, config = self.midlayer, self.config
        both = torch.cat((layer.input_layernorm(embedding), layer.hidden_norm(hidden)), dim=-1)
        angles = positions[:, None].float() * self.frequencies
        cos, sin = angles.cos() * config.rope.magnitude, angles.sin() * config.rope.magnitude
        attention = layer.self_attn

        def heads(projected: torch.Tensor) -> torch.Tensor:
            return projected.view(len(projected), -1, config.head_dim).float()

        return LayerInput(
            _rotated(heads(attention.q_proj(both)), cos, sin) if with_query else None,
            _rotated(heads(attention.k_proj(both)), cos, sin),
            heads(attention.v_proj(both)),
        )

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The layer's output, un-normed, [N, H], from its input and the heads' results [N, heads * head_dim].

        It is the hidden state of the next step, and `norm` and `lm_head` make the guess of it.
        """
        hidden = hidden + self.midlayer.self_attn.o_proj(attended)
        output: torch.Tensor = hidden + self.midlayer.mlp(self.midlayer.post_attention_layernorm(hidden))
        return output


def _rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Half-split rotary embedding of [N, heads, dim] by [N, dim / 2]."""
    cos, sin = cos[:, None], sin[:, None]
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
