"""Random Medusa heads in the published layout, and what they compute, by the definition."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.models.config import ModelConfig

Tensors = dict[str, torch.Tensor]


def make_medusa(target: ModelConfig, num_heads: int, num_blocks: int = 1, seed: int = 0) -> Tensors:
    """Weights of heads for a model."""
    random = torch.Generator().manual_seed(seed)
    hidden = target.hidden_size
    tensors: Tensors = {}
    for head in range(num_heads):
        for block in range(num_blocks):
            weight = torch.randn(hidden, hidden, generator=random) / hidden**0.5
            tensors[f"{head}.{block}.linear.weight"] = weight
            tensors[f"{head}.{block}.linear.bias"] = 0.1 * torch.randn(hidden, generator=random)
        tensors[f"{head}.{num_blocks}.weight"] = torch.randn(target.vocab_size, hidden, generator=random)
    return tensors


def write_medusa(folder: Path, tensors: Tensors, pickled: bool = True, **config: object) -> Path:
    """Writes a folder, with a config.json where something is to be in it."""
    folder.mkdir(parents=True, exist_ok=True)
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(tensors, folder / "medusa_lm_head.pt")
    else:
        save_file(tensors, folder / "medusa_lm_head.safetensors")
    return folder


def dense_logits(tensors: Tensors, head: int, num_blocks: int, feature: torch.Tensor) -> torch.Tensor:
    """Logits of one head, [V], of a feature [H]."""
    for block in range(num_blocks):
        name = f"{head}.{block}.linear"
        feature = feature + torch.nn.functional.silu(
            tensors[f"{name}.weight"] @ feature + tensors[f"{name}.bias"]
        )
    return tensors[f"{head}.{num_blocks}.weight"] @ feature
