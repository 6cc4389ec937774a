"""Loads a Hugging Face folder into a Decoder. Strict: every weight is accounted for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.attention.registry import create_backend
from engine.models.base import DraftedLM
from engine.models.checkpoint import Checkpoint, read_checkpoint
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder, DecoderWeights
from engine.models.errors import CheckpointError, ModelError
from engine.models.layers import FeedForwardWeights, LayerWeights
from engine.models.moe import ExpertsWeights
from engine.models.registry import read_config
from engine.models.upgrade import UpgradingModel
from engine.models.weights import (
    DOWN,
    EMBEDDING,
    FINAL_NORM,
    INPUT_NORM,
    KEY_NORM,
    LM_HEAD,
    OUTPUT,
    QUERY_NORM,
    check_weights,
    layer_prefix,
)
from engine.ops.base import HeadNorms, Linear, Norm, Ops
from engine.ops.cpu.build import DEFAULT_CACHE
from engine.ops.registry import select_ops
from engine.quantization.int8 import Int8Weight
from engine.quantization.registry import PLAIN
from engine.quantization.registry import quantization as quantization_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a config's dtype. Raises ModelError naming the supported ones."""
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r} is not supported; supported are {', '.join(DTYPES)}")
    return DTYPES[name]


def load_model(
    model_dir: Path,
    *,
    dtype: str = "float32",
    ops: str = "auto",
    quantization: str = "none",
    attention_backend: str = "auto",
    device: str = "cpu",
    context_length: int = 0,
    kernel_cache: Path | None = None,
) -> DraftedLM:
    """Loads config and weights and makes the model's attention backend.

    Args:
        model_dir: Hugging Face folder.
        dtype: "float32" or "bfloat16"; stored weights (fp32, bf16, fp16) are converted.
        ops: name in `engine.ops.registry`. With "auto" a model whose kernels are still to be built serves at
            once and becomes faster between two steps.
        quantization: name in `engine.quantization.registry`: how the linear layers' weights are stored.
        attention_backend: file name in `engine/attention/`, or "auto".
        device: torch device.
        context_length: most tokens that a context is to have; 0 is the model's own limit. Some rotary
            embeddings depend on it.
        kernel_cache: folder for kernels that are built; None is `engine.ops.cpu.build.DEFAULT_CACHE`.

    Raises:
        ModelError: unsupported dtype, family or setting; weights missing, unknown, misshapen or corrupt.
        ValueError: no such ops, quantization or attention backend, or not on this machine.
    """
    kind = torch_dtype(dtype)
    store = quantization_of(quantization)
    config = read_config(model_dir, context_length)
    # A backend that needs the kernels cannot begin without them.
    wanted = "cpu" if ops == "auto" and attention_backend == "cpu" else ops
    selection = select_ops(wanted, device=device, dtype=kind, kernel_cache=kernel_cache or DEFAULT_CACHE)

    def load(arithmetic: Ops) -> Decoder:
        attention = create_backend(attention_backend, config, arithmetic, coarse=quantization != PLAIN)
        checkpoint = read_checkpoint(model_dir)
        check_weights(checkpoint, config)
        with ExitStack() as stack:
            reader = _Reader(checkpoint, kind, device, stack)
            weights = _assemble(config, reader, _Packer(arithmetic, store))
        return Decoder(config, weights, arithmetic, attention)

    model, later = load(selection.ops), selection.later
    return model if later is None else UpgradingModel(model, lambda: load(later()))


_Pack = Callable[[torch.Tensor, torch.Tensor | None], Linear]


@dataclass(frozen=True, slots=True)
class _Packer:
    """Lays weights out for `ops`, stored as `store` says."""

    ops: Ops
    store: Callable[[torch.Tensor], torch.Tensor | Int8Weight]

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """A linear layer."""
        return self.ops.pack(self.store(weight), bias)

    def gated(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """The gate and up of a feed-forward."""
        return self.ops.pack_gated(self.store(weight), bias)

    def exact(self, weight: torch.Tensor) -> Linear:
        """One that is never quantised."""
        return self.ops.pack(weight)


class _Reader:
    """Reads tensors in the wanted dtype; keeps the files mapped until the stack closes."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: str, stack: ExitStack) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        # safetensors types its handle in no way that a checker sees.
        self._handles: dict[Path, Any] = {}
        for path in checkpoint.files:
            try:
                self._handles[path] = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} is corrupt: {error}") from error

    def stored(self, name: str) -> torch.Tensor | None:
        """The tensor as stored, or None."""
        entry = self._checkpoint.tensors.get(name)
        if entry is None:
            return None
        tensor: torch.Tensor = self._handles[entry.file].get_tensor(name)
        return tensor

    def plain(self, *names: str) -> torch.Tensor:
        """The named tensors, one after the other along the first dimension, in the wanted dtype."""
        parts = [self._require(name) for name in names]
        return torch.cat(parts).to(self._device, self._dtype)

    def norm(self, name: str, config: ModelConfig) -> Norm:
        """A norm by its module's name.

        One whose weights are stored as an offset stays in fp32: the sum has more digits than bf16 holds, and
        the families that store it so multiply before they round.
        """
        weight = self._require(f"{name}.weight").to(self._device)
        if config.norm_offset:
            return Norm(weight.float() + config.norm_offset, config.rms_norm_eps)
        return Norm(weight.to(self._dtype), config.rms_norm_eps)

    def _require(self, name: str) -> torch.Tensor:
        tensor = self.stored(name)
        if tensor is None:
            raise CheckpointError(f"weight {name!r} is missing")
        return tensor


def _assemble(config: ModelConfig, reader: _Reader, packer: _Packer) -> DecoderWeights:
    embedding = reader.plain(EMBEDDING)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_layer(config, reader, packer, layer) for layer in range(config.num_layers)),
        final_norm=reader.norm(FINAL_NORM, config),
        lm_head=packer.linear(_lm_head(config, reader, embedding)),
    )


def _layer(config: ModelConfig, reader: _Reader, packer: _Packer, layer: int) -> LayerWeights:
    prefix, layout = layer_prefix(layer), config.layout

    def linear(modules: Sequence[str], biased: bool = False, pack: _Pack = packer.linear) -> Linear:
        bias = reader.plain(*(f"{prefix}{module}.bias" for module in modules)) if biased else None
        return pack(reader.plain(*(f"{prefix}{module}.weight" for module in modules)), bias)

    def norm(name: str) -> Norm:
        return reader.norm(prefix + name, config)

    feed_forward: FeedForwardWeights | ExpertsWeights
    experts = config.experts
    if experts is not None and layer in experts.layers:
        modules = [layout.expert_modules(expert) for expert in range(experts.count)]
        feed_forward = ExpertsWeights(
            router=packer.exact(reader.plain(f"{prefix}{layout.router}.weight")),
            gate_up=tuple(linear((gate, up), pack=packer.gated) for gate, up, _ in modules),
            down=tuple(linear((down,)) for _, _, down in modules),
            per_token=experts.per_token,
            normalized=experts.normalized,
        )
    else:
        feed_forward = FeedForwardWeights(
            gate_up=linear(layout.gate_up, config.mlp_bias, packer.gated),
            down=linear((DOWN,), config.mlp_bias),
        )
    return LayerWeights(
        input_norm=norm(INPUT_NORM),
        qkv=linear(layout.qkv, config.qkv_bias),
        head_norms=HeadNorms(norm(QUERY_NORM), norm(KEY_NORM)) if config.head_norms else None,
        output=linear((OUTPUT,), config.output_bias),
        attention_post_norm=norm(layout.attention_post_norm) if layout.attention_post_norm else None,
        feed_forward_norm=norm(layout.feed_forward_norm),
        feed_forward=feed_forward,
        feed_forward_post_norm=norm(layout.feed_forward_post_norm) if layout.feed_forward_post_norm else None,
    )


def _lm_head(config: ModelConfig, reader: _Reader, embedding: torch.Tensor) -> torch.Tensor:
    if not config.tie_word_embeddings:
        return reader.plain(LM_HEAD)
    copy, stored = reader.stored(LM_HEAD), reader.stored(EMBEDDING)
    if copy is not None and stored is not None and not torch.equal(copy, stored):
        raise CheckpointError(f"weight {LM_HEAD!r} differs from {EMBEDDING!r}, though config.json ties them")
    return embedding
