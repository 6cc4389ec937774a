"""What each family reads from config.json as it is published, with the key names of transformers 4."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.models.config import Divided, ModelConfig
from engine.models.errors import CheckpointError, UnsupportedModelError
from engine.models.registry import read_config
from engine.ops.activation import Activation

_COMMON: dict[str, object] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
MISTRAL = _COMMON | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
}
MIXTRAL = MISTRAL | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
}
QWEN3_MOE = _COMMON | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_window_layers": 6,
    "mlp_only_layers": [],
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "use_sliding_window": False,
}
# Neither names tie_word_embeddings: the default of these families is true.
GEMMA2 = _COMMON | {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "head_dim": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 144,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
}
GEMMA3 = _COMMON | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": None,
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "rope_local_base_freq": 10000,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}
PHI3 = _COMMON | {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "attention_bias": False,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "resid_pdrop": 0.0,
    "rope_scaling": {"type": "su", "long_factor": [3.0] * 8, "short_factor": [1.0] * 8},
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "tie_word_embeddings": False,
}


def read(folder: Path, raw: dict[str, object], context_length: int = 0) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(raw))
    return read_config(folder, context_length)


def without(raw: dict[str, object], *keys: str) -> dict[str, object]:
    return {key: value for key, value in raw.items() if key not in keys}


def test_mistral(tmp_path: Path) -> None:
    assert read(tmp_path, MISTRAL).windows == (4096,) * 6
    assert read(tmp_path, MISTRAL | {"sliding_window": None}).windows == (0,) * 6
    # Left out, the key means what it means to transformers.
    assert read(tmp_path, without(MISTRAL, "sliding_window")).windows == (4096,) * 6


def test_mixtral(tmp_path: Path) -> None:
    config = read(tmp_path, MIXTRAL)
    assert config.experts is not None
    assert (config.experts.count, config.experts.per_token, config.experts.normalized) == (8, 2, True)
    assert (config.experts.intermediate_size, config.experts.layers) == (128, frozenset(range(6)))
    assert config.windows == (0,) * 6
    theta = read(tmp_path, MIXTRAL | {"rope_theta": 1e6}).ropes
    assert read(tmp_path, without(MIXTRAL, "rope_theta")).ropes == theta != config.ropes


def test_qwen3_moe(tmp_path: Path) -> None:
    config = read(tmp_path, QWEN3_MOE)
    assert config.experts is not None
    assert (config.experts.count, config.experts.per_token, config.experts.intermediate_size) == (16, 4, 48)
    assert config.head_norms
    some = read(tmp_path, QWEN3_MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [3]}).experts
    assert some is not None
    assert some.layers == {1, 5}
    renamed = without(QWEN3_MOE, "num_experts") | {"num_local_experts": 16}
    assert read(tmp_path, renamed) == config
    with pytest.raises(CheckpointError, match="a token cannot go to 17 of 16 experts"):
        read(tmp_path, QWEN3_MOE | {"num_experts_per_tok": 17})


def test_gemma2(tmp_path: Path) -> None:
    config = read(tmp_path, GEMMA2)
    assert config.windows == (4096, 0) * 3
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    assert (config.attention_scale, config.embedding_scale) == (1 / 12, 8.0)
    assert (config.activation, config.norm_offset) == (Activation.GELU_TANH, 1.0)
    assert config.tie_word_embeddings
    assert not config.head_norms
    bare = without(GEMMA2, "attn_logit_softcapping", "final_logit_softcapping", "hidden_activation")
    assert read(tmp_path, bare) == config
    uncapped = read(tmp_path, GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert (uncapped.attention_softcap, uncapped.logit_softcap) == (0.0, 0.0)


def test_gemma3(tmp_path: Path) -> None:
    config = read(tmp_path, GEMMA3)
    assert config.windows == (512,) * 5 + (0,)
    assert config.max_position_embeddings == 8192
    assert (config.attention_softcap, config.logit_softcap) == (0.0, 0.0)
    local, wide = config.ropes[0], config.ropes[5]
    assert (local.scaling, wide.scaling) == (None, Divided(8.0))
    assert (local.theta, wide.theta) == (10_000.0, 1_000_000.0)
    assert config.head_norms
    nested = without(
        GEMMA3, "rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern"
    ) | {
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000},
        },
    }
    assert read(tmp_path, nested) == config
    assert read(tmp_path, GEMMA3 | {"sliding_window_pattern": 3}).windows == (512, 512, 0) * 2


def test_phi3_chooses_factors_by_the_longest_context(tmp_path: Path) -> None:
    long, short = read(tmp_path, PHI3), read(tmp_path, PHI3, 4096)
    assert [read.ropes[0].scaling.factors[0] for read in (long, short)] == [3.0, 1.0]
    assert read(tmp_path, PHI3, 4097) == long
    assert long.max_position_embeddings == short.max_position_embeddings == 131072
    assert long.ropes[0].magnitude == short.ropes[0].magnitude > 1.1
    plain = read(tmp_path, PHI3 | {"rope_scaling": None, "partial_rotary_factor": 0.75})
    assert plain.ropes[0].dim == 12


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (MISTRAL | {"layer_types": ["full_attention"] * 6}, "layer type 'full_attention' is not supported"),
        (MISTRAL | {"quantization_config": {}}, "quantization_config is not supported"),
        (GEMMA2 | {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        (GEMMA2 | {"hidden_activation": None}, "hidden_activation = None is not supported"),
        (GEMMA2 | {"hidden_activation": "gelu"}, "hidden_activation = 'gelu' is not supported, only 'silu'"),
        (GEMMA3 | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0 is not supported"),
        (GEMMA3 | {"architectures": ["Gemma3ForConditionalGeneration"]}, "Gemma3ForConditionalGeneration is"),
        (PHI3 | {"attention_bias": True}, "attention_bias = True is not supported"),
        (PHI3 | {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling of type 'linear' is not"),
        (QWEN3_MOE | {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not supported"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path: Path, raw: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read(tmp_path, raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (MISTRAL | {"sliding_window": 0}, "sliding_window must be a positive integer, not 0"),
        (GEMMA2 | {"layer_types": ["full_attention"]}, "layer_types must name 6 layers"),
        (GEMMA2 | {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be a positive number"),
        (GEMMA3 | {"rope_parameters": {"rope_theta": 1.0}}, "rope_parameters must have an object each"),
        (QWEN3_MOE | {"mlp_only_layers": 3}, "mlp_only_layers must be a list of layers, not 3"),
        (PHI3 | {"rope_scaling": [4]}, r"rope_scaling must be an object, not \[4\]"),
        (
            PHI3 | {"rope_scaling": {"type": "longrope", "long_factor": [3.0]}},
            "long_factor must be a list of 8",
        ),
    ],
)
def test_values_that_make_no_sense(tmp_path: Path, raw: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, raw)
