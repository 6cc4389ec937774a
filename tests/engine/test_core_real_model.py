"""The engine over real weights, greedy against transformers and sampled against itself."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.api import EngineRequest, SamplingParams
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.kv.storage import allocate_pool
from engine.models.decoder import Decoder
from engine.models.loader import load_model
from prefix_index.hashing import ChainHasher
from tests.engine.digest_model import run_all
from tests.support.tiny_models import tiny_llama

NEW_TOKENS = 36
_random = random.Random(3)
PROMPTS = [tuple(_random.randrange(256) for _ in range(_random.randrange(1, 70))) for _ in range(10)]

Answer = tuple[int, ...]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Decoder:
    return load_model(folder)


def make(model: Decoder, num_blocks: int = 100, **settings: int | bool) -> tuple[LLMEngine, torch.Tensor]:
    config = EngineConfig(
        model_dir=Path("unused"),
        check_invariants=True,
        **settings,  # type: ignore[arg-type]
    )
    pool = allocate_pool(model.config, num_blocks, config.block_size, torch.float32)
    return LLMEngine(model, pool, config, ChainHasher("tiny", config.block_size)), pool


def requests(temperature: float) -> list[EngineRequest]:
    return [
        EngineRequest(
            f"r{number}",
            prompt,
            SamplingParams(temperature, 0.95, 50, number, 0, NEW_TOKENS, ignore_eos=True),
        )
        for number, prompt in enumerate(PROMPTS)
    ]


def answers_of(engine: LLMEngine, wanted: list[EngineRequest]) -> list[Answer]:
    for each in wanted:
        engine.submit(each)
    answers, _ = run_all(engine)
    return [answers.of(each.request_id)[0] for each in wanted]


def alone(model: Decoder, temperature: float) -> list[Answer]:
    return [answers_of(make(model)[0], [wanted])[0] for wanted in requests(temperature)]


def test_greedy_equals_transformers(folder: Path, model: Decoder) -> None:
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    peer.generation_config.eos_token_id = None
    peer.generation_config.pad_token_id = 0
    for prompt, answer in zip(PROMPTS, alone(model, 0.0), strict=True):
        input_ids = torch.tensor([prompt])
        whole = peer.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
        )
        assert tuple(whole[0, len(prompt) :].tolist()) == answer


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("num_blocks", "settings"),
    [
        (100, {}),
        (100, {"prefill_chunk": 16}),
        (8, {"swap_memory_bytes": 0}),
        (8, {}),
        (100, {"attention_backend": "reference"}),
    ],
    ids=["batch", "chunks", "recomputed", "swapped", "reference"],
)
def test_batches_equal_single_runs(
    folder: Path, model: Decoder, temperature: float, num_blocks: int, settings: dict[str, int | bool]
) -> None:
    backend = settings.get("attention_backend")
    used = model if backend is None else load_model(folder, attention_backend=str(backend))
    engine, _ = make(used, num_blocks, **settings)
    wanted = requests(temperature)
    expected = alone(model, temperature)
    assert answers_of(engine, wanted) == expected
    if num_blocks == 8:
        stats = engine.stats()
        assert stats.preemptions_total > 0
        assert (stats.swaps_total > 0) == (stats.swapped_out_blocks_total > 0) == (not settings)
    else:
        # Once more, with all prompts in the prefix cache.
        assert answers_of(engine, wanted) == expected
        assert engine.stats().cached_tokens_total > 200


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_handed_over_equals_single_runs(model: Decoder, temperature: float) -> None:
    prefill, source = make(model, prefill_chunk=16)
    decode, target = make(model)
    wanted = requests(temperature)
    announced: dict[str, list[int]] = {each.request_id: [] for each in wanted}
    for each in wanted:
        prefill.submit_prefill(each)
    _, outputs = run_all(prefill)
    for output in outputs:
        for event in output.kv_ready:
            announced[event.request_id] += event.new_block_ids
    for token in (token for output in outputs for token in output.tokens):
        each = wanted[int(token.request_id[1:])]
        reservation = decode.reserve(each)
        assert reservation is not None
        target[list(reservation.block_ids)] = source[announced[token.request_id]]
        decode.adopt(token.request_id, token.token_id)
    answers, _ = run_all(decode)
    assert [answers.of(each.request_id)[0] for each in wanted] == alone(model, temperature)
