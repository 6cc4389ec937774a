"""The weights that a decoder of a given config must have, under their Hugging Face names."""

from __future__ import annotations

import re

from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.models.errors import CheckpointError

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"
FLOAT_DTYPES = ("F32", "BF16", "F16")
_MAX_NAMED = 5
# Old checkpoints carry the rotary frequencies, which follow from the config.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def expected_weights(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape (out, in) of every weight that the config calls for."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, shared = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (shared, hidden),
        "self_attn.v_proj.weight": (shared, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        layer |= {
            "self_attn.q_proj.bias": (query,),
            "self_attn.k_proj.bias": (shared,),
            "self_attn.v_proj.bias": (shared,),
        }
    weights: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not config.tie_word_embeddings:
        weights[LM_HEAD] = (config.vocab_size, hidden)
    for index in range(config.num_layers):
        weights |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return weights


def check_weights(checkpoint: Checkpoint, config: ModelConfig) -> None:
    """Raises CheckpointError unless the checkpoint has exactly the config's weights.

    A copy of the embedding under `lm_head.weight` is let through for tied models; the loader compares it.
    """
    expected = expected_weights(config)
    others = f" and {len(checkpoint.files) - 1} more" if len(checkpoint.files) > 1 else ""
    where = f"{checkpoint.files[0]}{others}"
    missing = [name for name in expected if name not in checkpoint.tensors]
    if missing:
        raise CheckpointError(f"{where}: {_named(missing)} missing")
    allowed = {*expected, LM_HEAD}
    unknown = [name for name in checkpoint.tensors if name not in allowed and not _DERIVED.fullmatch(name)]
    if unknown:
        file = checkpoint.tensors[unknown[0]].file
        raise CheckpointError(f"{file}: {_named(unknown)} unknown to family {config.family!r}")
    for name, shape in expected.items():
        entry = checkpoint.tensors[name]
        if entry.shape != shape:
            problem = f"has shape {list(entry.shape)} where config.json wants {list(shape)}"
        elif entry.dtype not in FLOAT_DTYPES:
            problem = f"is stored as {entry.dtype}; supported are {', '.join(FLOAT_DTYPES)}"
        else:
            continue
        raise CheckpointError(f"{entry.file}: weight {name!r} {problem}")


def _named(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_MAX_NAMED])
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"weight{'s' if len(names) > 1 else ''} {shown}{more}"
