"""Answers on disk: shards of what the target wrote, with what it knew while it wrote.

A shard is a safetensors file, complete or absent: it is written beside its place and then moved there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt of P tokens and the answer to it, n tokens together, at least P + 1.

    Attributes:
        kind: of the prompt.
        greedy: whether the answer's tokens are the target's likeliest; else they were drawn from it.
        prompt_length: P.
        token_ids: [n] int32.
        features: [n - 1, 3 H] bf16, what entered the tapped layers; the last token was never run.
        final: [n - 1 - P, H] bf16, what the LM head saw, from the answer's first token on.
        log_totals: [n - 1 - P] fp32, logarithm of the sum of the exponentiated logits there.
    """

    kind: str
    greedy: bool
    prompt_length: int
    token_ids: torch.Tensor
    features: torch.Tensor
    final: torch.Tensor
    log_totals: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one answer lies in its shard."""

    kind: str
    greedy: bool
    prompt_length: int
    start: int
    length: int
    answer_start: int


def shard_path(folder: Path, index: int) -> Path:
    """Where shard `index` lies."""
    return folder / f"answers-{index:05d}.safetensors"


def write_shard(path: Path, answers: Sequence[Answer]) -> None:
    """Writes answers; the file appears whole."""
    tensors = {
        "token_ids": torch.cat([answer.token_ids for answer in answers]),
        "features": torch.cat([answer.features for answer in answers]),
        "final": torch.cat([answer.final for answer in answers]),
        "log_totals": torch.cat([answer.log_totals for answer in answers]),
        "lengths": torch.tensor([len(answer.token_ids) for answer in answers]),
        "prompt_lengths": torch.tensor([answer.prompt_length for answer in answers]),
        "greedy": torch.tensor([answer.greedy for answer in answers]),
    }
    save_whole(path, tensors, {"kinds": json.dumps([answer.kind for answer in answers])})


class AnswerShard:
    """Reads one shard, each answer when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with safe_open(path, framework="pt") as file:
            kinds = json.loads(file.metadata()["kinds"])
            lengths = file.get_tensor("lengths").tolist()
            prompts = file.get_tensor("prompt_lengths").tolist()
            greedy = file.get_tensor("greedy").tolist()
        tails = [length - 1 - prompt for length, prompt in zip(lengths, prompts, strict=True)]
        self._places = [
            _Place(*place)
            for place in zip(
                kinds,
                greedy,
                prompts,
                list(accumulate(lengths, initial=0))[:-1],
                lengths,
                list(accumulate(tails, initial=0))[:-1],
                strict=True,
            )
        ]

    def __len__(self) -> int:
        return len(self._places)

    def num_anchors(self, index: int) -> int:
        """Positions of an answer from which something can be guessed."""
        place = self._places[index]
        return max(0, place.length - 1 - place.prompt_length)

    def answer_token_ids(self) -> Iterator[torch.Tensor]:
        """The tokens of each answer, without its prompt."""
        with safe_open(self._path, framework="pt") as file:
            token_ids = file.get_tensor("token_ids")
        for place in self._places:
            yield token_ids[place.start + place.prompt_length : place.start + place.length]

    def read(self, index: int) -> Answer:
        """Reads one answer."""
        place = self._places[index]
        # Each answer before this one has a row of features less than it has tokens.
        first = place.start - index
        end, answer_end = place.start + place.length, place.answer_start + self.num_anchors(index)
        with safe_open(self._path, framework="pt") as file:
            return Answer(
                place.kind,
                place.greedy,
                place.prompt_length,
                file.get_slice("token_ids")[place.start : end],
                file.get_slice("features")[first : first + place.length - 1],
                file.get_slice("final")[place.answer_start : answer_end],
                file.get_slice("log_totals")[place.answer_start : answer_end],
            )


def save_whole(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Writes a safetensors file that is either whole or not there."""
    beside = path.with_suffix(".writing")
    save_file(tensors, beside, metadata)
    # The library makes files that nobody else may read.
    beside.chmod(0o644)
    os.replace(beside, path)
