"""Loads the weights of an EAGLE head. Strict: every weight is accounted for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.models.base import SharedParts
from engine.models.checkpoint import INDEX_FILE, SINGLE_FILE
from engine.models.errors import CheckpointError
from engine.models.layers import EmbeddingInput, FeedForwardWeights, LayerWeights
from engine.models.weights import DOWN, INPUT_NORM, KEY_NORM, OUTPUT, QUERY_NORM, Shapes
from engine.ops.base import HeadNorms, Linear, Norm
from engine.quantization.int8 import Int8Weight
from engine.speculation.eagle.config import EagleConfig, Generation
from engine.speculation.head_files import FLOATS, Tensors, naming, read_head

PICKLED_FILE = "pytorch_model.bin"
_FUSE, _FUSE_NORM, _FEATURE_NORM, _NORM = "fc", "input_norm", "fc_norm", "norm"
_LM_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"
_TO_TARGET, _IN_DRAFT = "d2t", "t2d"
_HIDDEN_NORM, _FEED_FORWARD_NORM = "hidden_norm", "post_attention_layernorm"
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
# The authors' name of the only layer of an EAGLE-3 head.
_MIDDLE = "midlayer."
# They follow from the config.
_DERIVED = re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


@dataclass(frozen=True, slots=True)
class EagleWeights:
    """H hidden of the head, F width of the features, D draft vocabulary, E embedding of the head.

    Attributes:
        embedding: [V, H].
        feature_norms: over the whole of the features, or over each; empty for none.
        fuse: F to H, or, of the first generation, 2 H to H.
        stream_norm: what the first layer's inputs are normed by before they become the residual stream; None
            where they are that as they are.
        layers: decoder layers.
        final_norm: before the LM head; None in the first generation.
        lm_head: H to D.
        target_ids: [D] int64, the model's token of each that is drafted; None where they are the same.
    """

    embedding: torch.Tensor
    feature_norms: tuple[Norm, ...]
    fuse: Linear
    stream_norm: Norm | None
    layers: tuple[LayerWeights, ...]
    final_norm: Norm | None
    lm_head: Linear
    target_ids: torch.Tensor | None


def load_weights(
    folder: Path,
    config: EagleConfig,
    shared: SharedParts,
    store: Callable[[torch.Tensor], torch.Tensor | Int8Weight],
) -> EagleWeights:
    """Loads a head.

    Args:
        folder: of the head.
        config: as read from it.
        shared: of the model: its dtype and device are the head's, and what the head lacks is the model's.
        store: how weights of linear layers are kept.

    Raises:
        CheckpointError: weights that are missing, unknown, misshapen or corrupt, or a draft vocabulary that
            is none.
    """
    tensors = _read(folder)
    try:
        _check(tensors, config)
        return _Assembly(tensors, config, shared, store).weights()
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None


def _read(folder: Path) -> Tensors:
    """All tensors, the only layer by one name."""
    named: dict[str, torch.Tensor] = {}
    for name, tensor in read_head(folder, (SINGLE_FILE, INDEX_FILE, PICKLED_FILE)).items():
        common = f"layers.0.{name.removeprefix(_MIDDLE)}" if name.startswith(_MIDDLE) else name
        if common in named:
            raise CheckpointError(f"{folder}: weight {common!r} is there twice, once as {name!r}")
        named[common] = tensor
    return named


def _expected(config: EagleConfig) -> Shapes:
    """Name -> shape of every weight that must be there."""
    layers, first = config.layers, config.generation is Generation.ONE
    hidden = layers.hidden_size
    width = config.points.width(config.target_hidden_size)
    shapes: Shapes = {f"{_FUSE}.weight": (hidden, 2 * hidden if first else width)}
    if config.fuse_bias:
        shapes[f"{_FUSE}.bias"] = (hidden,)
    if config.norm_before_fuse:
        shapes[f"{_FUSE_NORM}.weight"] = (width,)
    if config.norm_each_feature:
        for index in range(len(config.points.entering)):
            shapes[f"{_FEATURE_NORM}.{index}.weight"] = (config.target_hidden_size,)
    if not first:
        shapes[f"layers.0.{_HIDDEN_NORM}.weight"] = (hidden,)
        shapes[f"{_NORM}.weight"] = (hidden,)
        if not config.tied:
            shapes[_LM_HEAD] = (config.draft_vocab_size, hidden)
        if config.draft_vocab_size != config.target_vocab_size:
            shapes[_TO_TARGET] = (config.draft_vocab_size,)
        if hidden != config.target_hidden_size:
            shapes[_EMBEDDING] = (config.target_vocab_size, hidden)
    for layer in range(layers.num_layers):
        inputs = hidden if first or layer else 2 * hidden
        own = _layer_shapes(config, inputs)
        if first and layer == 0:
            del own[f"{INPUT_NORM}.weight"]
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in own.items()}
    return shapes


def _layer_shapes(config: EagleConfig, inputs: int) -> Shapes:
    layers = config.layers
    hidden, inner, head_dim = layers.hidden_size, layers.intermediate_size, layers.head_dim
    query, shared = layers.num_heads * head_dim, layers.num_kv_heads * head_dim
    linears = {
        **dict(zip(_QKV, ((query, inputs), (shared, inputs), (shared, inputs)), strict=True)),
        OUTPUT: (hidden, query),
        **dict.fromkeys(_GATE_UP, (inner, hidden)),
        DOWN: (hidden, inner),
    }
    shapes: Shapes = {f"{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{name}.weight": (hidden,) for name in (INPUT_NORM, _FEED_FORWARD_NORM)}
    if layers.head_norms:
        shapes |= {f"{name}.weight": (head_dim,) for name in (QUERY_NORM, KEY_NORM)}
    biased = (*(_QKV if layers.qkv_bias else ()), *((OUTPUT,) if layers.output_bias else ()))
    biased += (*_GATE_UP, DOWN) if layers.mlp_bias else ()
    return shapes | {f"{name}.bias": linears[name][:1] for name in biased}


def _optional(config: EagleConfig) -> Shapes:
    """What may be there too."""
    shapes: Shapes = {_EMBEDDING: (config.target_vocab_size, config.layers.hidden_size)}
    if config.generation is not Generation.ONE:
        # Some heads say that they are tied and have an LM head nevertheless, which they were trained with.
        shapes[_LM_HEAD] = (config.draft_vocab_size, config.layers.hidden_size)
        shapes[_TO_TARGET] = (config.draft_vocab_size,)
        shapes[_IN_DRAFT] = (config.target_vocab_size,)
    return shapes


def _check(tensors: Tensors, config: EagleConfig) -> None:
    expected, optional = _expected(config), _optional(config)
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise CheckpointError(f"{naming(missing)} missing")
    known = optional | expected
    unknown = [name for name in tensors if name not in known and not _DERIVED.fullmatch(name)]
    if unknown:
        raise CheckpointError(
            f"{naming(unknown)} unknown to an EAGLE-{config.generation} head of this config"
        )
    for name, shape in known.items():
        tensor = tensors.get(name)
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise CheckpointError(
                f"weight {name!r} has shape {list(tensor.shape)} where config.json wants {list(shape)}"
            )
        whole = name in (_TO_TARGET, _IN_DRAFT)
        if not whole and tensor.dtype not in FLOATS:
            raise CheckpointError(f"weight {name!r} is stored as {tensor.dtype}, which is not supported")
        if whole and tensor.is_floating_point():
            raise CheckpointError(f"weight {name!r} is stored as {tensor.dtype}: it holds whole numbers")


@dataclass(frozen=True, slots=True)
class _Assembly:
    """Lays checked tensors out for the model's operations."""

    tensors: Tensors
    config: EagleConfig
    shared: SharedParts
    store: Callable[[torch.Tensor], torch.Tensor | Int8Weight]

    def weights(self) -> EagleWeights:
        """All of them."""
        config = self.config
        first = config.generation is Generation.ONE
        embedding = self._plain(_EMBEDDING) if _EMBEDDING in self.tensors else self.shared.embedding
        target_ids = self._target_ids()
        return EagleWeights(
            embedding=embedding,
            feature_norms=self._feature_norms(),
            fuse=self._linear((_FUSE,), config.fuse_bias),
            stream_norm=self._hidden_norm() if config.norm_before_residual else None,
            layers=tuple(self._layer(layer) for layer in range(config.layers.num_layers)),
            final_norm=None if first else self._norm(_NORM),
            lm_head=self.shared.lm_head if first else self._lm_head(embedding, target_ids),
            target_ids=target_ids,
        )

    def _lm_head(self, embedding: torch.Tensor, target_ids: torch.Tensor | None) -> Linear:
        if _LM_HEAD in self.tensors:
            return self._linear(("lm_head",), False)
        rows = embedding if target_ids is None else embedding.index_select(0, target_ids)
        return self.shared.ops.pack(self.store(rows))

    def _feature_norms(self) -> tuple[Norm, ...]:
        if self.config.norm_each_feature:
            count = len(self.config.points.entering)
            return tuple(self._norm(f"{_FEATURE_NORM}.{index}") for index in range(count))
        return (self._norm(_FUSE_NORM),) if self.config.norm_before_fuse else ()

    def _layer(self, layer: int) -> LayerWeights:
        prefix, layers = f"layers.{layer}.", self.config.layers

        def linear(modules: tuple[str, ...], biased: bool, gated: bool = False) -> Linear:
            return self._linear(tuple(prefix + module for module in modules), biased, gated)

        input_norm, qkv, embedding_input = self._attention_inputs(layer)
        norms = None
        if layers.head_norms:
            norms = HeadNorms(self._norm(prefix + QUERY_NORM), self._norm(prefix + KEY_NORM))
        return LayerWeights(
            input_norm=input_norm,
            qkv=qkv,
            head_norms=norms,
            output=linear((OUTPUT,), layers.output_bias),
            attention_post_norm=None,
            feed_forward_norm=self._norm(prefix + _FEED_FORWARD_NORM),
            feed_forward=FeedForwardWeights(
                gate_up=linear(_GATE_UP, layers.mlp_bias, gated=True), down=linear((DOWN,), layers.mlp_bias)
            ),
            feed_forward_post_norm=None,
            embedding_input=embedding_input,
        )

    def _attention_inputs(self, layer: int) -> tuple[Norm | None, Linear, EmbeddingInput | None]:
        """Norm and weights of query, key and value, and what else they are of."""
        prefix, config = f"layers.{layer}.", self.config
        modules, biased = tuple(prefix + module for module in _QKV), config.layers.qkv_bias
        if layer or config.generation is Generation.ONE:
            return self._norm(prefix + INPUT_NORM) if layer else None, self._linear(modules, biased), None
        # Columns of the embedding come first.
        hidden = config.layers.hidden_size
        embedding_input = EmbeddingInput(
            self._norm(prefix + INPUT_NORM), self._linear(modules, False, columns=slice(hidden))
        )
        norm = None if config.norm_before_residual else self._hidden_norm()
        return norm, self._linear(modules, biased, columns=slice(hidden, None)), embedding_input

    def _target_ids(self) -> torch.Tensor | None:
        """The stored numbers are offsets: the token of draft i is i + d2t[i]."""
        config = self.config
        offsets, in_draft = self.tensors.get(_TO_TARGET), self.tensors.get(_IN_DRAFT)
        ids = torch.arange(config.draft_vocab_size)
        if offsets is not None:
            ids = ids + offsets.long()
        ordered = ids.sort().values
        if not bool(
            (ordered.diff() > 0).all() & (ordered[0] >= 0) & (ordered[-1] < config.target_vocab_size)
        ):
            raise CheckpointError(
                f"weight {_TO_TARGET!r} does not name {len(ids)} tokens of the model, each once"
            )
        if in_draft is not None:
            told = in_draft.bool().nonzero().squeeze(-1)
            if not torch.equal(told, ordered):
                raise CheckpointError(f"weights {_TO_TARGET!r} and {_IN_DRAFT!r} name different tokens")
        if len(ids) == config.target_vocab_size and torch.equal(ids, torch.arange(len(ids))):
            return None
        return ids.to(self.shared.embedding.device)

    def _plain(self, *names: str) -> torch.Tensor:
        """The named tensors, one after the other along the first dimension, as the model has its own."""
        like = self.shared.embedding
        return torch.cat([self.tensors[name] for name in names]).to(like.device, like.dtype)

    def _norm(self, module: str) -> Norm:
        return Norm(self._plain(f"{module}.weight"), self.config.layers.rms_norm_eps)

    def _hidden_norm(self) -> Norm:
        return self._norm(f"layers.0.{_HIDDEN_NORM}")

    def _linear(
        self, modules: tuple[str, ...], biased: bool, gated: bool = False, columns: slice = slice(None)
    ) -> Linear:
        bias = self._plain(*(f"{module}.bias" for module in modules)) if biased else None
        weight = self._plain(*(f"{module}.weight" for module in modules))[:, columns]
        ops = self.shared.ops
        return (ops.pack_gated if gated else ops.pack)(self.store(weight), bias)
