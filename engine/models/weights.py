"""The weights that a decoder of a given config must have, under their Hugging Face names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.models.errors import CheckpointError

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm"
LM_HEAD = "lm_head.weight"
INPUT_NORM = "input_layernorm"
OUTPUT = "self_attn.o_proj"
DOWN = "mlp.down_proj"
QUERY_NORM = "self_attn.q_norm"
KEY_NORM = "self_attn.k_norm"
FLOAT_DTYPES = ("F32", "BF16", "F16")
_MAX_NAMED = 5
# Old checkpoints carry the rotary frequencies, which follow from the config.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")

Shapes = dict[str, tuple[int, ...]]


def layer_prefix(layer: int) -> str:
    """What the names of a layer's weights begin with."""
    return f"model.layers.{layer}."


def expected_weights(config: ModelConfig) -> Shapes:
    """Name -> shape (out, in) of every weight that the config calls for."""
    weights: Shapes = {
        EMBEDDING: (config.vocab_size, config.hidden_size),
        f"{FINAL_NORM}.weight": (config.hidden_size,),
    }
    if not config.tie_word_embeddings:
        weights[LM_HEAD] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        shapes = _attention(config) | _norms(config)
        if config.experts is not None and layer in config.experts.layers:
            shapes |= _experts(config)
        else:
            shapes |= _feed_forward(config)
        weights |= {layer_prefix(layer) + name: shape for name, shape in shapes.items()}
    return weights


def _attention(config: ModelConfig) -> Shapes:
    query, shared = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return _linears(
        config.layout.qkv, (query, shared, shared), config.hidden_size, config.qkv_bias
    ) | _linears((OUTPUT,), (config.hidden_size,), query, config.output_bias)


def _norms(config: ModelConfig) -> Shapes:
    layout = config.layout
    names = (INPUT_NORM, layout.feed_forward_norm, layout.attention_post_norm, layout.feed_forward_post_norm)
    norms: Shapes = {f"{name}.weight": (config.hidden_size,) for name in names if name}
    if config.head_norms:
        norms |= {f"{name}.weight": (config.head_dim,) for name in (QUERY_NORM, KEY_NORM)}
    return norms


def _feed_forward(config: ModelConfig) -> Shapes:
    inner, hidden = config.intermediate_size, config.hidden_size
    return _linears(config.layout.gate_up, (inner, inner), hidden, config.mlp_bias) | _linears(
        (DOWN,), (hidden,), inner, config.mlp_bias
    )


def _experts(config: ModelConfig) -> Shapes:
    experts, layout, hidden = config.experts, config.layout, config.hidden_size
    assert experts is not None
    weights: Shapes = {f"{layout.router}.weight": (experts.count, hidden)}
    for expert in range(experts.count):
        gate, up, down = layout.expert_modules(expert)
        inner = experts.intermediate_size
        weights |= _linears((gate, up), (inner, inner), hidden, False)
        weights |= _linears((down,), (hidden,), inner, False)
    return weights


def _linears(modules: Sequence[str], rows: Sequence[int], columns: int, bias: bool) -> Shapes:
    """Shapes of modules that hold these rows: one each, or one module for all of them."""
    parts = rows if len(modules) == len(rows) else (sum(rows),)
    shapes: Shapes = {}
    for module, part in zip(modules, parts, strict=True):
        shapes[f"{module}.weight"] = (part, columns)
        if bias:
            shapes[f"{module}.bias"] = (part,)
    return shapes


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
