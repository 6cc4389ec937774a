"""EAGLE heads in the whole engine: tokens are those without them, and what is accepted is asserted, too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from engine.api import EngineRequest, SamplingParams
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.kv.storage import allocate_pool
from engine.models.base import DraftedLM
from engine.models.batch import ForwardBatch
from engine.models.loader import load_model
from engine.speculation.base import TargetPass
from engine.speculation.choice import Drafters
from engine.speculation.eagle.drafter import DraftShape, EagleDrafter
from engine.speculation.eagle.head import EagleHead
from engine.speculation.planner import FixedPlanner
from engine.speculation.speculator import Speculator
from engine.speculation.tree import DraftTree
from prefix_index.hashing import ChainHasher
from tests.engine.speculation.test_eagle import CHAIN, TREE, expected_chain, third
from tests.support.drafting import Drafting
from tests.support.engines import still_clock
from tests.support.markov import VOCAB, knowing_head, markov_model
from tests.support.reference_model import prompt
from tests.support.tiny_models import tiny_llama


@dataclass(slots=True)
class Watched:
    """An engine with a head, and what its drafter was told."""

    engine: LLMEngine
    drafter: EagleDrafter
    steps: int = 0

    def run(self, requests: list[EngineRequest]) -> dict[str, list[int]]:
        """Tokens of each request."""
        for request in requests:
            self.engine.submit(request)
        tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
        while self.engine.has_work():
            output = self.engine.step()
            self.steps += 1
            assert not output.failures
            for token in output.tokens:
                tokens[token.request_id].append(token.token_id)
        return tokens


def make(
    model: DraftedLM,
    head: EagleHead,
    shape: DraftShape,
    drafts: int | None,
    num_blocks: int = 64,
    **settings: float,
) -> Watched:
    """With so many drafts always, 0 included; None is for no speculation."""
    config = EngineConfig(model_dir=Path("unused"), check_invariants=True, **settings)
    layers = head.config.layers.num_layers
    pool = allocate_pool(model.config, num_blocks, config.block_size, torch.float32, draft_layers=layers)
    drafter = EagleDrafter(head, pool, shape)
    drafters = Drafters(drafter, "eagle3", branching=shape.width > 1)
    speculator = None if drafts is None else Speculator(drafters, FixedPlanner(drafts))
    hasher = ChainHasher("tiny", config.block_size)
    engine = LLMEngine(model, pool, config, hasher, clock=still_clock, speculator=speculator)
    return Watched(engine, drafter)


def request(
    name: str, tokens: list[int], max_tokens: int, temperature: float = 0.0, seed: int = 0
) -> EngineRequest:
    params = SamplingParams(
        temperature=temperature,
        top_p=1.0,
        top_k=0,
        seed=seed,
        choice=0,
        max_tokens=max_tokens,
        ignore_eos=True,
    )
    return EngineRequest(name, tuple(tokens), params)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> DraftedLM:
    folder = tiny_llama(tmp_path_factory.mktemp("target"), layers=3)
    return load_model(folder, ops="torch", attention_backend="sdpa")


SETTINGS = {
    "plain": {},
    "blocks of a token": {"block_size": 1, "num_blocks": 600},
    "chunks": {"prefill_chunk": 3, "max_batched_tokens": 11, "block_size": 4, "num_blocks": 200},
    "preemption": {"block_size": 4, "num_blocks": 14, "swap_memory_bytes": 0},
    "swapping": {"block_size": 4, "num_blocks": 14},
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_tokens_are_those_without_a_head(
    target: DraftedLM, tmp_path: Path, settings: dict[str, float], shape: DraftShape, temperature: float
) -> None:
    head, _ = third(target, tmp_path)
    requests = [
        request(f"r{index}", prompt(length, index), 16, temperature, index)
        for index, length in enumerate((30, 7, 19, 1))
    ]
    # A prefix that an earlier one has computed.
    requests.append(request("again", [*prompt(30, 0), 5, 6], 16, temperature, 9))
    plain = make(target, head, shape, None, **settings).run(requests)
    for drafts in (1, 9):
        watched = make(target, head, shape, drafts, **settings)
        assert watched.run(requests) == plain
        assert (watched.engine.stats().preemptions_total > 0) is (settings.get("num_blocks") == 14)


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_a_head_that_knows_saves_its_passes(tmp_path: Path, shape: DraftShape) -> None:
    """Through chunks and prefix hits; every pass but the contexts' gives a draft's depth and one more."""
    model = markov_model(tmp_path / "model")
    head = knowing_head(tmp_path / "head", model)
    drafts = CHAIN.depth if shape is CHAIN else TREE.size
    watched = make(model, head, shape, drafts, block_size=4, prefill_chunk=8)
    first = [index % VOCAB for index in range(24)]
    answer = 1 + 6 * (shape.depth + 1)
    watched.run([request("a", first, answer)])
    assert watched.steps == 3 + 6
    watched.steps = 0
    watched.run([request("b", [*first, 3, 3], answer)])
    assert watched.steps == 1 + 6
    assert watched.engine.stats().cached_tokens_total == 24


@pytest.mark.parametrize("swapped", [False, True])
def test_entries_are_whole_after_hits_and_preemptions(
    target: DraftedLM, tmp_path: Path, swapped: bool
) -> None:
    """A history that began anew would show in the first key."""
    head, _ = third(target, tmp_path)
    memory = 1 << 20 if swapped else 0
    watched = make(target, head, CHAIN, 3, num_blocks=22, block_size=4, swap_memory_bytes=memory)
    keys: set[int] = set()
    extend = watched.drafter.extend

    def noted(found: TargetPass) -> None:
        extend(found)
        keys.update(extent.sequence.draft_states[watched.drafter].first_key for extent in found.extents)

    watched.drafter.extend = noted
    for turn in range(2):
        watched.run([request(f"{turn}{i}", prompt(9, i), 40) for i in range(4)])
    stats = watched.engine.stats()
    assert stats.preemptions_total > 0
    assert stats.cached_tokens_total > 0
    assert (stats.swaps_total > 0) is swapped
    assert keys == {1}


@pytest.mark.parametrize("swap_memory_bytes", [0, 1 << 20])
def test_blocks_have_their_entries_whether_or_not_anybody_drafts(
    target: DraftedLM, tmp_path: Path, swap_memory_bytes: int
) -> None:
    """What waits to be written is there once others can see it: after preemptions, swaps and hits, too."""
    head, _ = third(target, tmp_path)
    eager, lazy = (
        make(target, head, CHAIN, drafts, num_blocks, block_size=4, swap_memory_bytes=swap_memory_bytes)
        for drafts, num_blocks in ((3, 200), (0, 26))
    )
    # Whoever reads a slot that was never written shows it.
    lazy.engine._runner._kv[:, target.config.num_layers :] = 1e4
    for watched in (eager, lazy):
        for turn in range(2):
            watched.run([request(f"{turn}{i}", prompt(9, i), 40) for i in range(4)])
    stats = lazy.engine.stats()
    assert stats.preemptions_total > 0
    assert (stats.swaps_total > 0) is (swap_memory_bytes > 0)
    caches = [watched.engine._blocks.cache for watched in (eager, lazy)]
    both = set(caches[0].hashes()) & set(caches[1].hashes())
    assert len(both) > 12
    children = {block for block, _ in caches[1].links()}
    for name in both:
        blocks = [cache.block_of(name) for cache in caches]
        first = 0 if blocks[1] in children else 1
        own = [
            watched.engine._runner._kv[block, target.config.num_layers :, :, :, first:]
            for watched, block in zip((eager, lazy), blocks, strict=True)
        ]
        torch.testing.assert_close(own[1], own[0], atol=1e-4, rtol=1e-4)


def test_a_sequence_that_nobody_drafts_for_costs_a_pass_of_the_head_in_a_block(
    target: DraftedLM, tmp_path: Path
) -> None:
    head, reference = third(target, tmp_path)
    drafting = Drafting(target, head, CHAIN, block_size=8)
    sequence = drafting.start(prompt(5))
    drafting.prefill(sequence)
    passes: list[int] = []
    forward = head.forward

    def counted(batch: ForwardBatch, hidden: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        passes.append(len(batch.token_ids))
        return forward(batch, hidden, kv)

    head.forward = counted
    for _ in range(16):
        drafting.step([sequence], [0])
    # Up to the ends of two blocks, with the token that follows; the first slot has no entry.
    assert passes == [8, 8]
    tokens = list(sequence.token_ids)
    drafting.step([sequence], [2])
    assert passes[2] == len(tokens) - 17
    assert drafting.trees == [DraftTree.chain(tuple(expected_chain(drafting, reference, tokens, 2)))]
