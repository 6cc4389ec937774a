"""Greedy answers are those without drafts: every method, shape, number of drafts and page size.

Each cell of the grid runs the same sixteen requests side by side, in an engine that has all that drafts may
stumble over: contexts computed in chunks, prefixes found in the cache, and a pool that runs out of blocks
while drafts are in flight, so that sequences are preempted between two of their proposals.

The model has so few tokens that a head which knows nothing is right now and then, and the draft model is the
model itself, blurred. So drafts are accepted and refused in every cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.api import EngineRequest
from engine.models.base import DraftedLM
from engine.models.loader import load_model
from engine.speculation.config import SpeculationConfig
from engine.speculation.registry import methods
from tests.engine.digest_model import Answers, params, run_all
from tests.support.eagle_heads import (
    HeadShape,
    flat_config,
    layers_config,
    make_eagle1,
    make_eagle3,
    write_head,
)
from tests.support.engines import engine_over, still_clock
from tests.support.medusa_heads import make_medusa, write_medusa
from tests.support.speculation import speculating
from tests.support.tiny_models import save_tiny

VOCAB, MOST_DRAFTS, BATCH = 12, 8, 16

# Tokens of the answers by page size: enough to outgrow the pool.
ANSWERS = {4: 16, 8: 16, 16: 24, 32: 40}
PREFIX = torch.randint(VOCAB, (37,), generator=torch.Generator().manual_seed(7)).tolist()
"""Longer than the largest page; every fourth request begins with it."""

CHAINS_ALONE = ("draft_model", "ngram")
"""Methods that refuse to be asked for trees."""
LOOKUP_FIRST = "eagle3 after lookup"
SHAPES = [
    (method, shape)
    for method in methods()
    for shape in ("chain", "tree")
    if shape == "chain" or method not in CHAINS_ALONE
] + [(LOOKUP_FIRST, "tree"), (LOOKUP_FIRST, "chain")]
PAGES = tuple(ANSWERS)
# Each shape of each method meets every number of drafts, and every page size with and without swapping.
CELLS = [
    (method, shape, count, PAGES[(row + count) % len(PAGES)], count > MOST_DRAFTS // 2)
    for row, (method, shape) in enumerate(SHAPES)
    for count in range(1, MOST_DRAFTS + 1)
]


@dataclass(frozen=True, slots=True)
class Bench:
    """The model, what each method needs for it, and the answers without drafts, one request at a time."""

    model: DraftedLM
    folder: Path
    needs: dict[str, dict[str, Any]]
    expected: dict[str, tuple[int, ...]]


def requests(answer: int) -> list[EngineRequest]:
    """So many tokens for each prompt."""
    random = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 31, (BATCH,), generator=random).tolist()
    prompts = [torch.randint(VOCAB, (length,), generator=random).tolist() for length in lengths]
    return [
        EngineRequest(f"r{number}", tuple([*PREFIX, *own] if number % 4 == 0 else own), params(answer))
        for number, own in enumerate(prompts)
    ]


def pages_of_contexts(asked: list[EngineRequest], page: int) -> int:
    """With a token more for each, and the prefix once."""
    own = sum(-(-(len(request.prompt_token_ids) + 1) // page) for request in asked)
    return own - (BATCH // 4 - 1) * (len(PREFIX) // page)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("grid")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        # Far from the usual 0.02: no two logits of a greedy choice are near each other.
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    target = LlamaForCausalLM(config)
    save_tiny(target, folder / "model")
    with torch.no_grad():
        for weight in target.parameters():
            weight += 0.15 * torch.randn_like(weight)
    save_tiny(target, folder / "draft")
    model = load_model(folder / "model")
    shape = HeadShape(model.config)
    head = write_head(folder / "eagle3", flat_config(shape), make_eagle3(shape))
    needs: dict[str, dict[str, Any]] = {
        "draft_model": {"model": folder / "draft"},
        "eagle": {"model": write_head(folder / "eagle", layers_config(shape), make_eagle1(shape))},
        "eagle3": {"model": head},
        LOOKUP_FIRST: {"model": head, "lookup_first": True},
        "medusa": {"model": write_medusa(folder / "medusa", make_medusa(model.config, MOST_DRAFTS))},
        "ngram": {"prompt_lookup_min": 1},
        "suffix": {},
    }
    expected = {}
    for request in requests(max(ANSWERS.values())):
        engine, _ = engine_over(model)
        engine.submit(request)
        expected[request.request_id], _ = run_all(engine)[0].of(request.request_id)
    return Bench(model, folder / "model", needs, expected)


@pytest.mark.parametrize(("method", "shape", "count", "page", "swaps"), CELLS)
def test_answers_are_those_without_drafts(
    bench: Bench, method: str, shape: str, count: int, page: int, swaps: bool
) -> None:
    topk = 1 if shape == "chain" else 3
    drafts = count if shape == "chain" else 2 * count + 1
    config = SpeculationConfig(
        method.split()[0],
        num_speculative_tokens=count,
        eagle_topk=topk,
        num_draft_tokens=drafts + 1,
        # The heads are random: they are sure of nothing.
        draft_p_min=0.0,
        **bench.needs[method],
    )
    asked = requests(ANSWERS[page])
    engine, watched = speculating(
        bench.model,
        config,
        drafts,
        model_dir=bench.folder,
        clock=still_clock,
        block_size=page,
        # All contexts fit, with a page for each of the others to grow, but not all answers.
        num_blocks=pages_of_contexts(asked, page) + BATCH - 1,
        prefill_chunk=9,
        max_batched_tokens=160,
        max_decode_slowdown=0,
        # Preempted sequences are computed again, or come back from the host's memory.
        swap_memory_bytes=swaps << 22,
    )
    engine.submit(EngineRequest("prefix", tuple(PREFIX), params(1)))
    run_all(engine)
    for request in asked:
        engine.submit(request)
    answers, batch, preempted_beside_drafts = Answers(), 0, 0
    while engine.has_work():
        before = engine.stats().preemptions_total
        output = engine.step()
        answers.take(output)
        batch = max(batch, output.batch_size)
        drafted = any(report.drafted for report in output.drafts)
        preempted_beside_drafts += drafted * (engine.stats().preemptions_total - before)

    assert answers.tokens == {name: list(tokens[: ANSWERS[page]]) for name, tokens in bench.expected.items()}
    stats = engine.stats()
    assert batch == BATCH
    assert stats.cached_tokens_total >= BATCH // 4 * (len(PREFIX) // page * page - 1)
    assert preempted_beside_drafts > 0
    assert (stats.swaps_total > 0) is swaps
    assert (watched.branched > 0) is (shape == "tree")
    assert stats.speculation is not None
    assert stats.speculation.drafted_tokens > 4 * BATCH
    assert stats.speculation.accepted_tokens >= 4
