"""Loads a Hugging Face folder into a Decoder. Strict: every weight is accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.attention.registry import create_backend
from engine.models.checkpoint import Checkpoint, read_checkpoint
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder, DecoderWeights, LayerWeights
from engine.models.errors import CheckpointError, ModelError
from engine.models.registry import read_config
from engine.models.weights import EMBEDDING, FINAL_NORM, LM_HEAD, check_weights
from engine.ops.base import Norm, Ops
from engine.ops.registry import create_ops

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
    ops: str = "torch",
    attention_backend: str = "sdpa",
    device: str = "cpu",
) -> Decoder:
    """Loads config and weights and makes the model's attention backend.

    Args:
        model_dir: Hugging Face folder.
        dtype: "float32" or "bfloat16"; stored weights (fp32, bf16, fp16) are converted.
        ops: name in `engine.ops.registry`.
        attention_backend: file name in `engine/attention/`.
        device: torch device.

    Raises:
        ModelError: unsupported dtype, family or setting; weights missing, unknown, misshapen or corrupt.
        ValueError: no such ops or attention backend.
    """
    kind = torch_dtype(dtype)
    config = read_config(model_dir)
    arithmetic = create_ops(ops)
    attention = create_backend(attention_backend, config)
    checkpoint = read_checkpoint(model_dir)
    check_weights(checkpoint, config)
    with ExitStack() as stack:
        weights = _assemble(config, _Reader(checkpoint, kind, device, stack), arithmetic)
    return Decoder(config, weights, arithmetic, attention)


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

    def _require(self, name: str) -> torch.Tensor:
        tensor = self.stored(name)
        if tensor is None:
            raise CheckpointError(f"weight {name!r} is missing")
        return tensor


def _assemble(config: ModelConfig, reader: _Reader, ops: Ops) -> DecoderWeights:
    embedding = reader.plain(EMBEDDING)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_layer(config, reader, ops, f"model.layers.{i}.") for i in range(config.num_layers)),
        final_norm=Norm(reader.plain(FINAL_NORM), config.rms_norm_eps),
        lm_head=ops.pack(_lm_head(config, reader, embedding)),
    )


def _layer(config: ModelConfig, reader: _Reader, ops: Ops, prefix: str) -> LayerWeights:
    def join(block: str, parts: Sequence[str], suffix: str = "weight") -> torch.Tensor:
        return reader.plain(*(f"{prefix}{block}.{part}_proj.{suffix}" for part in parts))

    def norm(name: str) -> Norm:
        return Norm(reader.plain(f"{prefix}{name}.weight"), config.rms_norm_eps)

    bias = join("self_attn", "qkv", "bias") if config.qkv_bias else None
    return LayerWeights(
        input_norm=norm("input_layernorm"),
        qkv=ops.pack(join("self_attn", "qkv"), bias),
        output=ops.pack(join("self_attn", "o")),
        post_attention_norm=norm("post_attention_layernorm"),
        gate_up=ops.pack(join("mlp", ("gate", "up"))),
        down=ops.pack(join("mlp", ("down",))),
    )


def _lm_head(config: ModelConfig, reader: _Reader, embedding: torch.Tensor) -> torch.Tensor:
    if not config.tie_word_embeddings:
        return reader.plain(LM_HEAD)
    copy, stored = reader.stored(LM_HEAD), reader.stored(EMBEDDING)
    if copy is not None and stored is not None and not torch.equal(copy, stored):
        raise CheckpointError(f"weight {LM_HEAD!r} differs from {EMBEDDING!r}, though config.json ties them")
    return embedding
