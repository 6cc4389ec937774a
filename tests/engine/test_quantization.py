"""int8: what is rounded how far, and what it costs a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.perplexity import MAX_INCREASE, perplexity, text_token_ids
from cluster.model_store.progress import silent
from cluster.model_store.store import resolve
from engine.models.loader import load_model
from engine.quantization.int8 import GROUP, Int8Weight, quantize, round_inputs
from engine.quantization.registry import quantization
from tests.support.paged import PagedModel
from tests.support.tiny_families import tiny_variety
from tests.support.tiny_models import tiny_llama


def test_weights_are_off_by_half_a_step_at_most() -> None:
    weight = (
        torch.randn(20, 300, generator=torch.Generator().manual_seed(0)) * torch.logspace(-5, 5, 20)[:, None]
    )
    stored = quantize(weight)
    assert stored.values.dtype == torch.int8
    assert stored.values.abs().amax(dim=1).tolist() == [127] * 20
    assert ((stored.dequantized() - weight).abs() <= 0.5001 * stored.scales[:, None]).all()


def test_an_outlier_spoils_its_own_group_only() -> None:
    hidden = torch.randn(3, 2 * GROUP + 5, generator=torch.Generator().manual_seed(0))
    hidden[1, 0] = 1e4
    errors = (round_inputs(hidden) - hidden).abs()
    assert errors[1, 1:GROUP].max() > 0.5
    assert errors[1, GROUP:].max() < 0.02
    assert errors[[0, 2]].max() < 0.02


def test_zeros_stay_zeros() -> None:
    assert not quantize(torch.zeros(4, 9)).dequantized().any()
    assert not round_inputs(torch.zeros(2, 9)).any()


def test_none_leaves_the_weight_alone() -> None:
    weight = torch.randn(3, 4)
    assert quantization("none")(weight) is weight


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


def test_torch_and_kernels_compute_the_same_int8_model(folder: Path) -> None:
    """So that a worker that still waits for its kernels may share KV with one that has them."""
    tokens = list(range(200))
    logits = []
    for ops in ("torch", "cpu"):
        paged = PagedModel(load_model(folder, ops=ops, quantization="int8"))
        logits.append(paged.prefill(paged.start(tokens, 0), 50))
    plain = PagedModel(load_model(folder, ops="cpu"))
    exact = plain.prefill(plain.start(tokens, 0), 50)
    # The kernels' attention rounds as well, but less than the weights are rounded.
    assert (logits[0] - logits[1]).norm() < 0.8 * (logits[1] - exact).norm()
    assert 0.001 < (logits[1] - exact).norm() / exact.norm() < 0.15


def test_the_choice_of_experts_is_not_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[torch.Size] = []

    def store(weight: torch.Tensor) -> Int8Weight:
        stored.append(weight.shape)
        return quantize(weight)

    monkeypatch.setattr("engine.models.loader.quantization_of", lambda _: store)
    model = load_model(tiny_variety(tmp_path, "mixtral"), quantization="int8")
    experts, hidden = model.config.experts, model.config.hidden_size
    assert experts is not None
    assert (2 * experts.intermediate_size, hidden) in stored
    assert (experts.count, hidden) not in stored


def test_int8_bits_do_not_depend_on_chunks(folder: Path) -> None:
    model = load_model(folder, ops="cpu", quantization="int8")
    tokens = list(range(150))
    results = []
    for chunk in (150, 64, 7, 1):
        paged = PagedModel(model)
        results.append(paged.prefill(paged.start(tokens, 0), chunk))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.model
@pytest.mark.timeout(900)
def test_perplexity_of_the_demo_model_stays(tmp_path: Path) -> None:
    folder = resolve("demo", tmp_path, silent).path
    pieces = text_token_ids(folder)
    plain, quantized = (
        perplexity(load_model(folder, ops="cpu", quantization=name), pieces) for name in ("none", "int8")
    )
    assert plain < quantized < MAX_INCREASE * plain
