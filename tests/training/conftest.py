"""A tiny target that has written answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import tiny_llama
from training.generate import GenerationConfig, generate
from training.prompts.mixture import Message, Prompt
from training.target import TargetWeights, read_target


@dataclass(frozen=True, slots=True)
class Written:
    model_dir: Path
    target: TargetWeights
    config: GenerationConfig
    shards: list[Path]


def encode(prompt: Prompt) -> list[int]:
    return list(prompt.messages[-1].content.encode())


def numbered_prompts() -> Iterator[Prompt]:
    number = 0
    while True:
        yield Prompt("numbers" if number % 3 else "letters", (Message("user", f"say {number * 7919} now"),))
        number += 1


def _predictable(model_dir: Path) -> Path:
    """Has it say few tokens, each of which says most about the next: a random model teaches nothing."""
    path = model_dir / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if "o_proj" in name or "down_proj" in name:
            tensor *= 0.01
    tensors["model.norm.weight"] *= 4
    if "lm_head.weight" in tensors:
        tensors["lm_head.weight"][24:] = 0
    save_file(tensors, path, {"format": "pt"})
    return model_dir


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return _write(tmp_path_factory.mktemp("written"), tie=False)


@pytest.fixture(scope="session")
def written_tied(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Of a target whose LM head is its embedding."""
    return _write(tmp_path_factory.mktemp("written_tied"), tie=True)


def _write(folder: Path, tie: bool) -> Written:
    model_dir = _predictable(tiny_llama(folder / "model", layers=8, tie=tie))
    answers = folder / "answers"
    answers.mkdir()
    config = GenerationConfig(
        model_dir, num_prompts=40, shard_size=8, max_prompt_tokens=32, max_new_tokens=48, batch_size=6, seed=3
    )
    torch.set_num_threads(1)
    shards = generate(config, islice(numbered_prompts(), 60), encode, answers, lambda progress: None)
    return Written(model_dir, read_target(model_dir), config, shards)
