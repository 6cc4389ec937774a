"""What is wrong with weights is said, by file and by name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.models.errors import CheckpointError, ModelError
from engine.models.loader import load_model
from tests.support.paged import PagedModel
from tests.support.tiny_models import tiny_llama, tiny_qwen2

QUERY = "model.layers.1.self_attn.q_proj.weight"
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "model")


def rewrite(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Stores the weights anew, some of them changed, added or (None) left out."""
    tensors = load_file(folder / WEIGHTS) | changes
    kept = {name: tensor.clone() for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})


def logits(folder: Path) -> torch.Tensor:
    paged = PagedModel(load_model(folder), num_pages=4)
    return paged.prefill(paged.start(list(range(20)), 0), 32)


def test_missing_weight(folder: Path) -> None:
    rewrite(folder, {QUERY: None})
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS}: weight '{QUERY}' missing"):
        load_model(folder)


def test_missing_lm_head_of_an_untied_model(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "untied", tie=False)
    rewrite(folder, {"lm_head.weight": None})
    with pytest.raises(CheckpointError, match=r"weight 'lm_head\.weight' missing"):
        load_model(folder)


def test_missing_bias(tmp_path: Path) -> None:
    folder = tiny_qwen2(tmp_path / "qwen2")
    rewrite(folder, {"model.layers.0.self_attn.k_proj.bias": None})
    with pytest.raises(CheckpointError, match=r"k_proj\.bias' missing"):
        load_model(folder)


def test_unknown_weight(folder: Path) -> None:
    rewrite(folder, {"model.layers.0.self_attn.q_norm.weight": torch.ones(16)})
    with pytest.raises(
        CheckpointError, match=rf"{WEIGHTS}: weight '.*q_norm\.weight' unknown to family 'llama'"
    ):
        load_model(folder)


def test_many_unknown_weights_are_not_all_listed(folder: Path) -> None:
    rewrite(folder, {f"extra.{i}": torch.ones(1) for i in range(9)})
    with pytest.raises(CheckpointError, match="and 4 more unknown"):
        load_model(folder)


def test_wrong_shape(folder: Path) -> None:
    rewrite(folder, {QUERY: torch.zeros(64, 32)})
    message = f"weight '{QUERY}' has shape [64, 32] where config.json wants [64, 64]"
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_model(folder)


def test_quantized_weight(folder: Path) -> None:
    rewrite(folder, {QUERY: torch.zeros(64, 64, dtype=torch.int8)})
    with pytest.raises(CheckpointError, match=rf"'{QUERY}' is stored as I8; supported are F32, BF16, F16"):
        load_model(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_truncated_file(folder: Path, keep: int) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS} is .*cut short"):
        load_model(folder)


def test_file_that_is_no_safetensors(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"\x93NUMPY" * 1000)
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS} is not a safetensors file"):
        load_model(folder)


def test_header_that_lies_about_a_tensor(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes().replace(b'"shape":[259,64]', b'"shape":[258,64]'))
    with pytest.raises(
        CheckpointError, match=r"'model\.embed_tokens\.weight' has a byte range that does not fit"
    ):
        load_model(folder)


def test_header_that_is_no_json(folder: Path) -> None:
    path = folder / WEIGHTS
    content = bytearray(path.read_bytes())
    content[8:12] = b"!!!!"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="corrupt safetensors header"):
        load_model(folder)


def test_no_weights(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"neither model.safetensors nor .*found pytorch_model.bin"):
        load_model(folder)


@pytest.mark.parametrize("dtype", ["float16", "int8", ""])
def test_unsupported_dtype(folder: Path, dtype: str) -> None:
    with pytest.raises(
        ModelError, match=f"dtype '{dtype}' is not supported; supported are float32, bfloat16"
    ):
        load_model(folder, dtype=dtype)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_weights_stored_in_half_precision_load_exactly(folder: Path, stored: torch.dtype) -> None:
    rewrite(folder, {name: tensor.to(stored) for name, tensor in load_file(folder / WEIGHTS).items()})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.arange(20)[None]).logits[0]
    torch.testing.assert_close(logits(folder), expected, atol=1e-4, rtol=0)


def test_copy_of_a_tied_embedding(folder: Path) -> None:
    expected = logits(folder)
    embedding = load_file(folder / WEIGHTS)["model.embed_tokens.weight"]
    rewrite(folder, {"lm_head.weight": embedding})
    assert torch.equal(logits(folder), expected)
    rewrite(folder, {"lm_head.weight": embedding + 1})
    with pytest.raises(
        CheckpointError, match=r"'lm_head\.weight' differs from .* though config\.json ties them"
    ):
        load_model(folder)


def test_stored_rotary_frequencies_are_let_through(folder: Path) -> None:
    expected = logits(folder)
    rewrite(folder, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    assert torch.equal(logits(folder), expected)


@pytest.fixture
def sharded(folder: Path) -> Path:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    (folder / WEIGHTS).unlink()
    model.save_pretrained(folder, max_shard_size="200KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    return folder


def test_sharded_checkpoint(sharded: Path, tmp_path: Path) -> None:
    assert torch.equal(logits(sharded), logits(tiny_llama(tmp_path / "whole")))


def test_missing_shard(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"{shard.name}, named in .*index\.json, is missing"):
        load_model(sharded)


def test_index_and_shards_that_disagree(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    shard = index["weight_map"].pop(QUERY)
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=rf"{shard} holds weight '{QUERY}'.* does not place there"):
        load_model(sharded)
    index["weight_map"] |= {QUERY: shard, "model.extra": shard}
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=rf"'model\.extra' is missing from .*{shard}, where .* puts it"):
        load_model(sharded)


def test_index_that_points_out_of_its_folder(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][QUERY] = "../other.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="not a file of its own folder"):
        load_model(sharded)
