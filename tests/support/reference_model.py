"""What transformers computes: whole contexts at once, without any cache."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.support.tiny_models import VOCAB_SIZE


def reference(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The folder's model, for evaluation."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random tokens."""
    return torch.randint(0, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def reference_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """Logits after each token, [tokens, vocab], fp32."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0].float()
    return logits


def reference_greedy(model: PreTrainedModel, tokens: list[int], count: int) -> list[int]:
    """The next `count` greedy tokens."""
    out = list(tokens)
    for _ in range(count):
        out.append(int(reference_logits(model, out)[-1].argmax()))
    return out[len(tokens) :]
