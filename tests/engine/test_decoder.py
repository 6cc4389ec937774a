"""The decoder against transformers: same logits, same greedy tokens, whatever the chunks and the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.attention.registry import backends
from engine.models.loader import load_model
from tests.support.paged import PagedModel, make_batch
from tests.support.reference_model import prompt, reference, reference_greedy, reference_logits
from tests.support.tiny_models import tiny_llama, tiny_qwen2

MODELS: dict[str, Callable[[Path], Path]] = {
    "llama": tiny_llama,
    "llama untied": lambda folder: tiny_llama(folder, seed=1, tie=False),
    "qwen2": tiny_qwen2,
}


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MODELS[request.param](tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("chunk", [100, 16, 7, 1])
@pytest.mark.parametrize("backend", backends())
def test_logits_equal_transformers(folder: Path, backend: str, chunk: int) -> None:
    tokens = prompt(75)
    paged = PagedModel(load_model(folder, attention_backend=backend))
    logits = paged.prefill(paged.start(tokens, 0), chunk)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, reference_logits(reference(folder), tokens), atol=1e-4, rtol=0)


def test_greedy_tokens_equal_transformers_in_a_mixed_batch(folder: Path) -> None:
    prompts = [prompt(length, seed=length) for length in (1, 5, 16, 33, 64, 90)]
    model = reference(folder)
    expected = [reference_greedy(model, tokens, 20) for tokens in prompts]
    for chunk in (256, 16):
        assert PagedModel(load_model(folder)).greedy(prompts, 20, chunk) == expected


def test_a_chunk_beside_decodes_changes_neither(folder: Path) -> None:
    paged = PagedModel(load_model(folder))
    early, late = prompt(30, seed=1), prompt(40, seed=2)
    first, second = paged.start(early, 10), paged.start(late, 10)
    paged.advance([(first, 25)])
    logits: list[list[torch.Tensor]] = [[], []]
    for steps in ([(first, 1), (second, 16)], [(first, 1), (second, 16)], [(second, 8), (first, 3)]):
        for (sequence, _), rows in zip(steps, paged.advance(steps), strict=True):
            logits[sequence is second].append(rows)
    model = reference(folder)
    torch.testing.assert_close(torch.cat(logits[0]), reference_logits(model, early)[25:], atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.cat(logits[1]), reference_logits(model, late), atol=1e-4, rtol=0)


def test_only_the_wanted_rows_get_logits(folder: Path) -> None:
    paged = PagedModel(load_model(folder))
    batch = make_batch([(prompt(20), 0, [3, 5])], paged.block_size)
    every = paged.model.forward(batch, paged.kv)
    for rows in ([19], [2, 7], []):
        wanted = torch.tensor(rows, dtype=torch.int64)
        logits = paged.model.forward(replace(batch, logits_rows=wanted), paged.kv)
        torch.testing.assert_close(logits, every[wanted], atol=1e-5, rtol=0)


def test_bfloat16_is_near_transformers(folder: Path) -> None:
    tokens = prompt(60)
    paged = PagedModel(load_model(folder, dtype="bfloat16"), dtype=torch.bfloat16)
    logits = paged.prefill(paged.start(tokens, 0), 16)
    expected = reference_logits(reference(folder, torch.bfloat16), tokens)
    exact = reference_logits(reference(folder), tokens)
    # Both round at every layer, each in its own places: neither may be much further from fp32.
    assert (logits - exact).abs().mean() < 1.5 * (expected - exact).abs().mean()
