"""What Hugging Face transformers answers: the yardstick of exactness, kept on disk once computed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import torch
import transformers
from rich.progress import Progress
from transformers import AutoModelForCausalLM


def _key(model_dir: Path, prompts: Sequence[Sequence[int]], max_tokens: int) -> str:
    digest = blake2b(digest_size=12)
    for name in sorted(path.name for path in model_dir.glob("*.json")):
        digest.update((model_dir / name).read_bytes())
    for weights in sorted(model_dir.glob("*.safetensors")):
        digest.update(f"{weights.name} {weights.stat().st_size}".encode())
    digest.update(json.dumps([list(map(list, prompts)), max_tokens, transformers.__version__]).encode())
    return digest.hexdigest()


def greedy_reference(
    model_dir: Path, prompts: Sequence[Sequence[int]], max_tokens: int, cache_dir: Path, fresh: bool = False
) -> list[list[int]]:
    """Greedy fp32 continuations by transformers, one prompt at a time, EOS included where it came.

    Results are kept in `cache_dir` under a key over model files, prompts and transformers' version, and
    partial ones survive an interruption; `fresh` computes them again.
    """
    cache_dir.mkdir(parents=True, exist_ok=True)
    file = cache_dir / f"reference-{_key(model_dir, prompts, max_tokens)}.json"
    if fresh:
        file.unlink(missing_ok=True)
    answers: list[list[int]] = json.loads(file.read_text()) if file.exists() else []
    if len(answers) == len(prompts):
        return answers
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    with Progress() as progress, torch.inference_mode():
        task = progress.add_task("transformers", total=len(prompts), completed=len(answers))
        for prompt in prompts[len(answers) :]:
            output = model.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=max_tokens,
                do_sample=False,
            )
            answers.append(output[0, len(prompt) :].tolist())
            progress.advance(task)
            if len(answers) % 20 == 0 or len(answers) == len(prompts):
                partial = file.with_suffix(f".{os.getpid()}.tmp")
                partial.write_text(json.dumps(answers))
                partial.replace(file)
    return answers
