"""GGUF files become Hugging Face folders that transformers and the engine read alike."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from cluster.model_store.errors import ModelStoreError
from cluster.model_store.gguf import convert
from cluster.model_store.huggingface import validate_folder
from cluster.model_store.progress import silent
from engine.models.registry import read_config
from tests.support.gguf_files import write_gguf
from tests.support.tiny_models import CHAT_TEMPLATE, IM_END, tiny_llama, tiny_qwen2

WEIGHTS = "model.safetensors"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "llama")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "converted"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("family", ["llama", "llama untied", "qwen2"])
def test_fp32_round_trip_is_exact(family: str, tmp_path: Path, target: Path) -> None:
    source = tmp_path / "source"
    if family == "qwen2":
        tiny_qwen2(source)
    else:
        tiny_llama(source, tie=family == "llama")
    convert(write_gguf(source, tmp_path / "m.gguf"), target, silent)
    validate_folder(target)
    before, after = load_file(source / WEIGHTS), load_file(target / WEIGHTS)
    assert before.keys() == after.keys()
    for name, weight in before.items():
        np.testing.assert_array_equal(after[name], weight, err_msg=name)
    assert read_config(target) == read_config(source)
    tokens = torch.arange(40)[None]
    models = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in (source, target)
    ]
    with torch.inference_mode():
        assert torch.equal(models[0](tokens).logits, models[1](tokens).logits)


def test_quantized_weights_are_dequantized(llama: Path, tmp_path: Path, target: Path) -> None:
    convert(write_gguf(llama, tmp_path / "m.gguf", GGMLQuantizationType.Q8_0), target, silent)
    before, after = load_file(llama / WEIGHTS), load_file(target / WEIGHTS)
    for name, weight in before.items():
        # Q8_0 has 255 steps for each 32 numbers of a row.
        assert np.abs(after[name] - weight).max() <= np.abs(weight).max() / 200, name
    assert any((after[name] != weight).any() for name, weight in before.items())


def test_config_is_read_by_both_generations_of_transformers(
    llama: Path, tmp_path: Path, target: Path
) -> None:
    convert(write_gguf(llama, tmp_path / "m.gguf"), target, silent)
    config = json.loads((target / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0
    assert config["rms_norm_eps"] == 1e-6
    assert config["torch_dtype"] == config["dtype"] == "float32"


def test_tokenizer_and_chat_template(llama: Path, tmp_path: Path, target: Path) -> None:
    convert(write_gguf(llama, tmp_path / "m.gguf"), target, silent)
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    text = "the 12<|im_end|>\n é"
    encoded = tokenizer.encode(text)
    assert encoded.ids == [255, *b"e 12", IM_END, *"\n é".encode()]
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text
    # Control tokens are special; user defined ones are text that is never split.
    assert tokenizer.decode([IM_END, 258, 97]) == "<|endoftext|>a"
    chat = AutoTokenizer.from_pretrained(target)
    assert chat.chat_template == CHAT_TEMPLATE
    assert (chat.bos_token, chat.eos_token) == ("<|im_start|>", "<|im_end|>")
    prompt = chat.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n"


def test_bos_is_added_where_the_file_says_so(llama: Path, tmp_path: Path, target: Path) -> None:
    path = write_gguf(llama, tmp_path / "m.gguf", extra={"tokenizer.ggml.add_bos_token": True})
    convert(path, target, silent)
    assert Tokenizer.from_file(str(target / "tokenizer.json")).encode("a").ids == [256, 97]


def test_end_of_turn_ends_generation(llama: Path, tmp_path: Path, target: Path) -> None:
    convert(write_gguf(llama, tmp_path / "m.gguf", end_of_turn=258), target, silent)
    assert read_config(target).eos_token_ids == {IM_END, 258}


def test_progress_is_told(llama: Path, tmp_path: Path, target: Path) -> None:
    fractions: list[float] = []

    def collect(message: str, fraction: float | None = None) -> None:
        if fraction is not None:
            fractions.append(fraction)

    convert(write_gguf(llama, tmp_path / "m.gguf"), target, collect)
    assert fractions[0] == 0.0
    assert fractions[-1] == 1.0
    assert fractions == sorted(fractions)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extra": {"llama.rope.scaling.type": "yarn"}}, "rope scaling is not supported"),
        ({"extra": {"llama.rope.dimension_count": 8}}, "rotary embedding of a part"),
        (
            {"extra_tensors": {"rope_freqs.weight": np.ones(8, np.float32)}},
            "tensor 'rope_freqs.weight' is not",
        ),
        ({"leave_out": "model.embed_tokens.weight"}, "'token_embd.weight' is missing"),
        ({"pre_tokenizer": "tekken"}, "pre-tokenizer 'tekken' is not supported; there are .*smollm"),
        ({"tokenizer_model": "llama"}, "tokenizer 'llama' is not supported"),
    ],
)
def test_what_cannot_be_converted_is_refused(
    changes: dict[str, object], message: str, llama: Path, tmp_path: Path, target: Path
) -> None:
    with pytest.raises(ModelStoreError, match=message):
        convert(write_gguf(llama, tmp_path / "m.gguf", **changes), target, silent)


def test_unsupported_architecture(llama: Path, tmp_path: Path, target: Path) -> None:
    config = json.loads((llama / "config.json").read_text()) | {"model_type": "falcon"}
    (llama / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ModelStoreError, match="architecture 'falcon' is not supported; there are llama, qwen2"
    ):
        convert(write_gguf(llama, tmp_path / "m.gguf"), target, silent)


@pytest.mark.parametrize("keep", [0, 3, 100, 3000, -5000])
def test_truncated_file(keep: int, llama: Path, tmp_path: Path, target: Path) -> None:
    path = write_gguf(llama, tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelStoreError, match=r"m\.gguf is not a GGUF file, or is cut short"):
        convert(path, target, silent)
