"""The decoder on the CPU kernels: transformers' tokens, and one answer in bits however it is computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.models.decoder import Decoder
from engine.models.features import FeaturePoints, FeatureTap
from engine.models.loader import load_model
from tests.support.paged import PagedModel, PagedSequence, make_batch
from tests.support.tiny_families import VARIETIES, tiny_variety
from tests.support.tiny_models import VOCAB_SIZE, tiny_llama

EXACT = [name for name, variety in VARIETIES.items() if variety.exact_lengths is None]


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(0, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def load(folder: Path, context_length: int = 0, quantization: str = "none") -> Decoder:
    return load_model(
        folder, ops="cpu", attention_backend="cpu", quantization=quantization, context_length=context_length
    )


@pytest.mark.parametrize("name", EXACT)
def test_greedy_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    folder = tiny_variety(tmp_path, name)
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = [prompt(length, length) for length in (1, 18, 75)]
    expected = []
    for tokens in prompts:
        answer = list(tokens)
        for _ in range(8):
            with torch.inference_mode():
                answer.append(int(peer(torch.tensor([answer])).logits[0, -1].argmax()))
        expected.append(answer[len(tokens) :])
    model = load(folder, VARIETIES[name].context_length)
    for chunk in (100, 16):
        assert PagedModel(model).greedy(prompts, 8, chunk) == expected


@pytest.fixture(scope="module", params=["none", "int8"])
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Decoder:
    return load(tiny_llama(tmp_path_factory.mktemp("tiny")), quantization=request.param)


def alone(model: Decoder, tokens: list[int]) -> torch.Tensor:
    """Logits of every position, computed in one chunk."""
    paged = PagedModel(model)
    return paged.prefill(paged.start(tokens, 0), len(tokens))


@pytest.mark.parametrize("chunk", [1, 7, 16, 63, 64, 65, 200])
def test_bits_do_not_depend_on_chunks(model: Decoder, chunk: int) -> None:
    tokens = prompt(300, 1)
    paged = PagedModel(model)
    assert torch.equal(paged.prefill(paged.start(tokens, 0), chunk), alone(model, tokens))


@pytest.mark.parametrize("block_size", [1, 5, 16, 128])
def test_bits_do_not_depend_on_blocks(model: Decoder, block_size: int) -> None:
    tokens = prompt(130, 2)
    paged = PagedModel(model, num_pages=-(-200 // block_size), block_size=block_size)
    assert torch.equal(paged.prefill(paged.start(tokens, 0), 50), alone(model, tokens))


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3 moe"])
def test_bits_of_experts_do_not_depend_on_chunks(name: str, quantization: str, tmp_path: Path) -> None:
    model = load_model(tiny_variety(tmp_path, name), ops="cpu", quantization=quantization)
    assert isinstance(model, Decoder)
    tokens = prompt(120, 3)
    for chunk in (1, 7, 50):
        paged = PagedModel(model)
        assert torch.equal(paged.prefill(paged.start(tokens, 0), chunk), alone(model, tokens))


def test_pools_take_turns(model: Decoder) -> None:
    """Of other sizes of blocks, step by step: what was computed before for one serves no other."""
    tokens = prompt(90, 4)
    pools = [PagedModel(model, num_pages=-(-200 // size), block_size=size) for size in (16, 5, 16)]
    sequences = [paged.start(tokens, 0) for paged in pools]
    for paged, sequence in zip(pools, sequences, strict=True):
        paged.advance([(sequence, 80)])
    expected = alone(model, tokens)[80:]
    for row in range(10):
        for paged, sequence in zip(pools, sequences, strict=True):
            assert torch.equal(paged.advance([(sequence, 1)])[0], expected[row : row + 1])


def test_features_are_those_of_each_layer(model: Decoder) -> None:
    """However many are asked for, in a pass that Python computes and in one that is done again."""
    tokens, layers = prompt(6, 5), model.config.num_layers
    points = [FeaturePoints(tuple(range(layers + 1)), final=True), FeaturePoints((layers,)), FeaturePoints()]
    batch = make_batch([(tokens, 0, [1])], 16)
    kv = PagedModel(model).kv
    found: list[list[torch.Tensor]] = [[], [], []]
    outs = [torch.zeros(6, each.width(model.config.hidden_size)) for each in points]
    logits = []
    for _ in range(3):
        for each, out, taken in zip(points, outs, found, strict=True):
            out.zero_()
            tap = FeatureTap(each, out) if each.entering else None
            logits.append(model.forward(batch, kv, tap).clone())
            taken.append(out.clone())
    assert all(torch.equal(each, logits[0]) for each in logits)
    assert all(torch.equal(each, taken[0]) for taken in found for each in taken)
    hidden = model.config.hidden_size
    assert torch.equal(found[0][0][:, layers * hidden : (layers + 1) * hidden], found[1][0])


def test_bits_do_not_depend_on_the_batch(model: Decoder) -> None:
    """Long and short contexts, decodes and chunks side by side, against each alone."""
    prompts = [prompt(length, length) for length in (290, 3, 64, 65, 130, 1, 257, 40)]
    paged = PagedModel(model, num_pages=120)
    sequences = [paged.start(tokens, 0) for tokens in prompts]
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    step = 0
    while True:
        counts = (1, 50, 7, 120)
        steps: list[tuple[PagedSequence, int]] = [
            (sequence, counts[(step + index) % 4])
            for index, sequence in enumerate(sequences)
            if sequence.computed < len(sequence.tokens)
        ]
        if not steps:
            break
        rows = paged.advance(steps)
        for (sequence, _), logits in zip(steps, rows, strict=True):
            found[next(i for i, each in enumerate(sequences) if each is sequence)].append(logits.clone())
        step += 1
    for tokens, parts in zip(prompts, found, strict=True):
        assert torch.equal(torch.cat(parts), alone(model, tokens))
