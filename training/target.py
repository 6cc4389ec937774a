"""What a head needs of its target: the layers that it reads, and weights that they share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from engine.models.checkpoint import read_checkpoint
from engine.models.config import ModelConfig
from engine.models.errors import UnsupportedModelError
from engine.models.registry import read_config
from engine.models.weights import EMBEDDING, FINAL_NORM, LM_HEAD
from engine.ops.activation import Activation


def feature_layers(num_layers: int) -> tuple[int, ...]:
    """The layers whose input an EAGLE-3 head reads (Li et al., 2025): early, in the middle, late.

    Raises:
        UnsupportedModelError: fewer than six layers, of which these are not three.
    """
    layers = (2, num_layers // 2, num_layers - 3)
    if not layers[0] < layers[1] < layers[2]:
        raise UnsupportedModelError(f"a model of {num_layers} layers is too shallow for an EAGLE-3 head")
    return layers


def require_trainable(config: ModelConfig) -> None:
    """Raises UnsupportedModelError for a target whose arithmetic an EAGLE-3 head does not share, by name."""
    problems = {
        "scaled embeddings": config.embedding_scale != 1.0,
        "capped logits": bool(config.logit_softcap),
        "capped attention scores": bool(config.attention_softcap),
        "norms with an offset": bool(config.norm_offset),
        "partly rotated heads": any(rope.dim != config.head_dim for rope in config.ropes),
        f"activation {config.activation}": config.activation is not Activation.SILU,
    }
    named = [problem for problem, applies in problems.items() if applies]
    if named:
        raise UnsupportedModelError(
            f"an EAGLE-3 head has no {' and no '.join(named)}, which family {config.family!r} calls for"
        )


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """What a head shares with its target.

    Attributes:
        config: the target's shapes.
        embedding: [V, H] fp32.
        lm_head: [V, H] fp32; the embedding where they are tied.
        final_norm: [H] fp32.
    """

    config: ModelConfig
    embedding: torch.Tensor
    lm_head: torch.Tensor
    final_norm: torch.Tensor

    def lends_lm_head(self, wanted: bool | None) -> bool:
        """Whether a head is tied to its embedding; `wanted` is `TrainingConfig.tied`.

        Raises:
            ValueError: it is wanted, but the embedding is not the LM head.
        """
        possible = self.config.tie_word_embeddings
        if wanted and not possible:
            raise ValueError("--tied: the model's LM head is not its embedding, so no head can guess with it")
        return possible if wanted is None else wanted


def read_target(model_dir: Path) -> TargetWeights:
    """Reads them from a Hugging Face folder.

    Raises:
        ModelError: it cannot be read, or no head can be trained for it.
    """
    config = read_config(model_dir)
    require_trainable(config)
    checkpoint = read_checkpoint(model_dir)

    def read(name: str) -> torch.Tensor:
        with safe_open(checkpoint.tensors[name].file, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor.float()

    embedding = read(EMBEDDING)
    lm_head = embedding if config.tie_word_embeddings else read(LM_HEAD)
    return TargetWeights(config, embedding, lm_head, read(f"{FINAL_NORM}.weight"))
