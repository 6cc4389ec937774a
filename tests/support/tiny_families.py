"""A tiny random model of every family and of every variety that is computed differently."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.support.tiny_models import save_tiny, tiny_shapes

ORIGINAL_LENGTH = 32
"""Tokens that the varieties with scaled rotary embedding were "trained" on."""
WINDOW = 24
"""Of the varieties with sliding windows; no multiple of a block."""
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL_LENGTH}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL_LENGTH,
    "rope_theta": 10000.0,
}
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 20, "sliding_window": WINDOW, "tie_word_embeddings": True}


@dataclass(frozen=True, slots=True)
class Variety:
    """How a tiny model differs from a tiny Llama.

    Attributes:
        config: class of its config.
        changes: to the shapes that all tiny models have.
        context_length: which its rotary embedding is computed for; 0 is the model's own limit.
        exact_lengths: contexts of which transformers computes the same model; None is all of them.
    """

    config: Callable[..., PreTrainedConfig]
    changes: Mapping[str, object]
    context_length: int = 0
    exact_lengths: range | None = None


def _longrope(pairs: int) -> dict[str, object]:
    return {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.1 * pair for pair in range(pairs)],
        "long_factor": [1.0 + 2.0 * pair for pair in range(pairs)],
    }


_LONGROPE = {
    "original_max_position_embeddings": ORIGINAL_LENGTH,
    "max_position_embeddings": 8 * ORIGINAL_LENGTH,
    "rope_parameters": _longrope(8),
}
_DYNAMIC = {
    "max_position_embeddings": ORIGINAL_LENGTH,
    "rope_parameters": {"rope_type": "dynamic", "factor": 8.0},
}
SHORT = range(1, ORIGINAL_LENGTH + 1)
LONG = range(ORIGINAL_LENGTH + 1, 8 * ORIGINAL_LENGTH + 1)
VARIETIES: dict[str, Variety] = {
    "llama": Variety(LlamaConfig, {}),
    "llama biased": Variety(LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama linear": Variety(LlamaConfig, {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "llama llama3": Variety(LlamaConfig, {"rope_parameters": _LLAMA3}),
    "llama yarn": Variety(LlamaConfig, {"rope_parameters": _YARN, "head_dim": 32}),
    "llama dynamic short": Variety(LlamaConfig, _DYNAMIC, ORIGINAL_LENGTH, SHORT),
    "llama dynamic": Variety(LlamaConfig, _DYNAMIC, 90, range(90, 91)),
    "qwen2": Variety(Qwen2Config, {"tie_word_embeddings": False}),
    "qwen2 windows": Variety(
        Qwen2Config, {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    ),
    "qwen2 yarn": Variety(
        Qwen2Config,
        {"rope_parameters": _YARN | {"beta_fast": 20.0, "beta_slow": 2.0, "truncate": False}},
    ),
    "qwen3": Variety(Qwen3Config, {"head_dim": 32}),
    "qwen3 biased windows": Variety(
        Qwen3Config,
        {
            "head_dim": 16,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 0,
        },
    ),
    "qwen3 moe": Variety(Qwen3MoeConfig, {"head_dim": 16, "norm_topk_prob": True, **_EXPERTS}),
    "qwen3 moe sparse": Variety(
        Qwen3MoeConfig, {"mlp_only_layers": [0], "decoder_sparse_step": 2, **_EXPERTS}
    ),
    "mistral": Variety(MistralConfig, {"sliding_window": WINDOW}),
    "mistral full": Variety(MistralConfig, {"sliding_window": None, "head_dim": 32}),
    "mixtral": Variety(MixtralConfig, {"num_local_experts": 4}),
    "gemma2": Variety(
        Gemma2Config, {**_GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
    ),
    "gemma3": Variety(
        Gemma3TextConfig,
        {
            **_GEMMA,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
            },
        },
    ),
    "phi3": Variety(Phi3Config, {"sliding_window": WINDOW}),
    "phi3 partial": Variety(Phi3Config, {"partial_rotary_factor": 0.75, "tie_word_embeddings": True}),
    "phi3 longrope short": Variety(Phi3Config, _LONGROPE, ORIGINAL_LENGTH, SHORT),
    "phi3 longrope": Variety(Phi3Config, _LONGROPE, 0, LONG),
}


def tiny_variety(folder: Path, name: str, max_model_len: int = 4096) -> Path:
    """Makes the model of that name in `VARIETIES`, norms and biases random too. Returns the folder."""
    torch.manual_seed(3)
    variety = VARIETIES[name]
    config = variety.config(**{**tiny_shapes(max_model_len), **variety.changes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                # Norms begin as ones (or as zeros, added to one) and biases as zeros: too tame a test.
                parameter.add_(torch.randn_like(parameter) * (0.5 if "bias" in parameter_name else 0.2))
    return save_tiny(model, folder)
