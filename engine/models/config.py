"""The shapes and constants of a decoder-only model, whatever its family."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model, as read from a Hugging Face `config.json` by its family's file.

    Sizes are counts of elements. `rope_theta` is the rotary base; scaling of it is refused until a
    family needs it. `qkv_bias` says whether q, k and v projections have a bias.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    qkv_bias: bool
    eos_token_ids: frozenset[int]
    bos_token_id: int | None
