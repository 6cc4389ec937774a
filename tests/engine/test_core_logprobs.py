"""Log probabilities equal to those of transformers, however the answer comes about."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.api import EngineRequest, SamplingParams, StepOutput, TokenLogprobs
from engine.core import LLMEngine
from engine.models.decoder import Decoder
from engine.models.loader import load_model
from tests.engine.digest_model import run_all
from tests.support.engines import engine_over, still_clock
from tests.support.tiny_models import tiny_llama

_random = random.Random(11)
SAMPLING = SamplingParams(
    temperature=0.9, top_p=0.9, top_k=20, seed=5, choice=0, max_tokens=40, ignore_eos=True,
    repetition_penalty=1.3, logprobs=4, prompt_logprobs=3,
)  # fmt: skip
REQUESTS = [
    EngineRequest(
        f"r{number}",
        tuple(_random.randrange(256) for _ in range(_random.choice([1, 2, 17, 48, 61]))),
        replace(SAMPLING, seed=number, logprobs=number % 5),
    )
    for number in range(8)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Decoder:
    return load_model(folder)


@pytest.fixture(scope="module")
def peer(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


class Reports:
    """What an engine said of each request."""

    def __init__(self, outputs: list[StepOutput]) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[TokenLogprobs | None]] = {}
        self.prompts: dict[str, tuple[TokenLogprobs, ...]] = {}
        self.cached: dict[str, int] = {}
        for output in outputs:
            assert not output.failures
            for token in output.tokens:
                self.tokens.setdefault(token.request_id, []).append(token.token_id)
                self.logprobs.setdefault(token.request_id, []).append(token.logprobs)
            for done in output.prefills_done:
                self.prompts[done.request_id] = done.prompt_logprobs
                self.cached[done.request_id] = done.cached_tokens


def check(peer: torch.nn.Module, reports: Reports) -> None:
    for wanted in REQUESTS:
        tokens = reports.tokens[wanted.request_id]
        whole = [*wanted.prompt_token_ids, *tokens]
        with torch.inference_mode():
            logprobs = peer(torch.tensor([whole])).logits[0].log_softmax(dim=-1)
        num_prompt = len(wanted.prompt_token_ids)
        assert len(reports.prompts[wanted.request_id]) == num_prompt - 1
        for position, (token_id, said) in enumerate(
            zip(
                whole[1:],
                [*reports.prompts[wanted.request_id], *reports.logprobs[wanted.request_id]],
                strict=True,
            )
        ):
            assert said is not None
            row = logprobs[position]
            assert said.logprob == pytest.approx(float(row[token_id]), abs=2e-4)
            # Near ties may stand in either order.
            fewest, most = (1 + int((row > row[token_id] + by).sum()) for by in (1e-4, -1e-4))
            assert fewest <= said.rank <= most
            count = 3 if position < num_prompt - 1 else wanted.sampling.logprobs
            assert count is not None
            best = row.topk(count)
            assert [value for _, value in said.top] == pytest.approx(best.values.tolist(), abs=2e-4)
            assert all(value == pytest.approx(float(row[name]), abs=2e-4) for name, value in said.top)


def run(engine: LLMEngine) -> Reports:
    for wanted in REQUESTS:
        engine.submit(wanted)
    return Reports(run_all(engine)[1])


@pytest.mark.parametrize("settings", [{}, {"prefill_chunk": 7, "max_batched_tokens": 20}])
def test_equal_to_transformers(model: Decoder, peer: torch.nn.Module, settings: dict[str, int]) -> None:
    engine, _ = engine_over(model, **settings)
    check(peer, run(engine))


@pytest.mark.parametrize("swap_memory_bytes", [0, 1 << 24])
@pytest.mark.parametrize("prefill_chunk", [256, 7])
def test_after_preemption(
    model: Decoder, peer: torch.nn.Module, swap_memory_bytes: int, prefill_chunk: int
) -> None:
    engine, _ = engine_over(
        model,
        num_blocks=14,
        clock=still_clock,
        max_model_len=112,
        swap_memory_bytes=swap_memory_bytes,
        prefill_chunk=prefill_chunk,
    )
    check(peer, run(engine))
    stats = engine.stats()
    assert stats.preemptions_total > 0
    assert stats.swaps_total == (stats.preemptions_total if swap_memory_bytes else 0)


def test_a_prompt_that_is_reported_takes_no_prefix_hits_but_leaves_its_blocks(
    model: Decoder, peer: torch.nn.Module
) -> None:
    engine, _ = engine_over(model)
    check(peer, run(engine))
    again = run(engine)
    check(peer, again)
    assert not any(again.cached.values())
    plain = replace(REQUESTS[3], request_id="p", sampling=replace(SAMPLING, prompt_logprobs=None))
    plain = replace(plain, prompt_token_ids=max((r.prompt_token_ids for r in REQUESTS), key=len))
    engine.submit(plain)
    assert Reports(run_all(engine)[1]).cached["p"] == 48


def test_over_the_handover(model: Decoder, peer: torch.nn.Module) -> None:
    prefill, source = engine_over(model, prefill_chunk=10)
    decode, target = engine_over(model)
    for wanted in REQUESTS:
        prefill.submit_prefill(wanted)
    _, outputs = run_all(prefill)
    reports = Reports(outputs)
    blocks: dict[str, list[int]] = {}
    for output in outputs:
        for ready in output.kv_ready:
            blocks.setdefault(ready.request_id, []).extend(ready.new_block_ids)
    for wanted in REQUESTS:
        name = wanted.request_id
        reservation = decode.reserve(wanted)
        assert reservation is not None
        skip = reservation.num_unread_tokens // 16
        target[list(reservation.block_ids[skip:])] = source[blocks[name][skip:]]
        with pytest.raises(ValueError, match="exactly where they are asked for"):
            decode.adopt(name, reports.tokens[name][0])
        decode.adopt(name, reports.tokens[name][0], reports.logprobs[name][0])
    decoded = Reports(run_all(decode)[1])
    decoded.prompts = reports.prompts
    check(peer, decoded)


def test_only_the_rows_that_are_asked_for_get_logits(model: Decoder) -> None:
    engine, _ = engine_over(model, prefill_chunk=8)
    seen: list[int] = []
    forward = model.forward

    def watch(batch: object, kv: torch.Tensor, tap: object) -> torch.Tensor:
        logits = forward(batch, kv, tap)  # type: ignore[arg-type]
        seen.append(len(logits))
        return logits

    model.forward = watch  # type: ignore[method-assign]
    try:
        engine.submit(EngineRequest("r", tuple(range(20)), replace(SAMPLING, max_tokens=2)))
        engine.submit(
            EngineRequest("s", tuple(range(20)), replace(SAMPLING, max_tokens=2, prompt_logprobs=None))
        )
        run_all(engine)
    finally:
        model.forward = forward  # type: ignore[method-assign]
    # The prompt's 19, and two draws each.
    assert sum(seen) == 19 + 4
    assert max(seen) <= 9
