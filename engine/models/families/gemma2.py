"""Gemma 2: every second layer has a window, scores and logits are soft-capped.

Also what Gemma 3 kept of it: norms around both halves of a layer, stored as offsets from 1, scaled embeddings
and a scale of attention of its own.
"""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import Layout, ModelConfig
from engine.models.family import FULL, SLIDING, ConfigSource, Family, mixed_windows, read_decoder_config
from engine.models.fields import boolean, positive_float, positive_int, require_neutral

_LAYOUT = Layout(
    attention_post_norm="post_attention_layernorm",
    feed_forward_norm="pre_feedforward_layernorm",
    feed_forward_post_norm="post_feedforward_layernorm",
)
DEFAULTS = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_SOFTCAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}


def read_gemma_config(source: ConfigSource, family: str) -> ModelConfig:
    """Reads what Gemma 2 and 3 share; layers and their windows are left to each. `DEFAULTS` are in `source`.

    Raises UnsupportedModelError, CheckpointError.
    """
    raw = source.raw
    require_neutral(raw, {"use_bidirectional_attention": False})
    config = read_decoder_config(source, family=family, activation_key="hidden_activation")
    biased = boolean(raw, "attention_bias", False)
    return replace(
        config,
        attention_scale=positive_float(raw, "query_pre_attn_scalar") ** -0.5,
        embedding_scale=config.hidden_size**0.5,
        logit_softcap=positive_float(raw, "final_logit_softcapping")
        if raw.get("final_logit_softcapping")
        else 0.0,
        qkv_bias=biased,
        output_bias=biased,
        norm_offset=1.0,
        layout=_LAYOUT,
    )


def _read_config(source: ConfigSource) -> ModelConfig:
    raw = {**DEFAULTS, **_SOFTCAPS, **source.raw}
    config = read_gemma_config(replace(source, raw=raw), "gemma2")
    types = [SLIDING if layer % 2 == 0 else FULL for layer in range(config.num_layers)]
    softcap = raw.get("attn_logit_softcapping")
    return replace(
        config,
        attention_softcap=positive_float(raw, "attn_logit_softcapping") if softcap else 0.0,
        windows=mixed_windows(raw, positive_int(raw, "sliding_window"), types)[0],
    )


FAMILY = Family("gemma2", frozenset({"Gemma2ForCausalLM"}), _read_config)
