"""The checkpoint layouts of the families: each weight is accounted for, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.models.errors import CheckpointError
from engine.models.loader import load_model
from engine.models.registry import read_config
from engine.models.weights import expected_weights
from tests.support.tiny_families import VARIETIES, tiny_variety

WEIGHTS = "model.safetensors"
LAYER = "model.layers.1."
CHARACTERISTIC = {
    "llama biased": "self_attn.o_proj.bias",
    "qwen2": "self_attn.q_proj.bias",
    "qwen3": "self_attn.k_norm.weight",
    "qwen3 moe": "mlp.experts.4.up_proj.weight",
    "mixtral": "block_sparse_moe.experts.3.w2.weight",
    "gemma2": "post_feedforward_layernorm.weight",
    "gemma3": "self_attn.q_norm.weight",
    "phi3": "self_attn.qkv_proj.weight",
}


@pytest.mark.parametrize("name", VARIETIES)
def test_published_names_and_shapes_are_the_expected_ones(name: str, tmp_path: Path) -> None:
    folder = tiny_variety(tmp_path, name)
    stored = {name: tuple(weight.shape) for name, weight in load_file(folder / WEIGHTS).items()}
    assert expected_weights(read_config(folder)) == stored


@pytest.mark.parametrize(("name", "weight"), CHARACTERISTIC.items())
def test_what_is_wrong_with_a_familys_own_weight_is_named(name: str, weight: str, tmp_path: Path) -> None:
    folder = tiny_variety(tmp_path, name)
    tensors = load_file(folder / WEIGHTS)
    right = tensors[LAYER + weight]
    for wrong, message in (
        (None, f"weight '{LAYER}{weight}' missing"),
        (torch.cat([right, right]), rf"weight '{LAYER}{weight}' has shape \[{2 * len(right)}"),
        (right.to(torch.int8), f"weight '{LAYER}{weight}' is stored as I8"),
    ):
        changed = {key: value.clone() for key, value in tensors.items() if key != LAYER + weight}
        if wrong is not None:
            changed[LAYER + weight] = wrong
        save_file(changed, folder / WEIGHTS, metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match=message):
            load_model(folder)


def test_a_weight_of_another_family_is_unknown(tmp_path: Path) -> None:
    folder = tiny_variety(tmp_path, "qwen3 moe")
    tensors = load_file(folder / WEIGHTS) | {
        "model.layers.0.mlp.shared_expert_gate.weight": torch.ones(1, 64)
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"shared_expert_gate\.weight' unknown to family 'qwen3_moe'"):
        load_model(folder)
