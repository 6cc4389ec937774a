"""What a head knows of a sequence: across prefix hits, workers, lost features and slots without entries."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from engine.models.base import DraftedLM
from engine.models.loader import load_model
from engine.sequence import Sequence as EngineSequence
from engine.speculation.eagle.drafter import DraftShape
from engine.speculation.eagle.state import EagleState
from engine.speculation.tree import DraftTree
from tests.engine.speculation.test_eagle import CHAIN, TREE, check, expected_chain, third
from tests.support.drafting import Drafting
from tests.support.markov import VOCAB, knowing_head, markov_model
from tests.support.reference_model import prompt
from tests.support.tiny_models import tiny_llama

BLOCK = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("target"), layers=3)


@pytest.fixture(scope="module")
def target(folder: Path) -> DraftedLM:
    return load_model(folder, ops="torch", attention_backend="sdpa")


def hit(drafting: Drafting, source: EngineSequence, tokens: list[int], num_blocks: int) -> EngineSequence:
    """A sequence that finds its first blocks in the cache; its last token there is computed again."""
    sequence = drafting.start(tokens)
    drafting.free += sequence.blocks[:num_blocks]
    sequence.blocks[:num_blocks] = source.blocks[:num_blocks]
    sequence.num_computed = num_blocks * BLOCK - 1
    sequence.recompute_last = True
    return sequence


def state_of(sequence: EngineSequence) -> EagleState:
    (state,) = sequence.draft_states.values()
    assert isinstance(state, EagleState)
    return state


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_a_head_that_knows_is_always_right(tmp_path: Path, shape: DraftShape) -> None:
    """Whatever breaks the head's inputs shows here: outputs would stay right."""
    model = markov_model(tmp_path / "model")
    head = knowing_head(tmp_path / "head", model)
    drafting = Drafting(model, head, shape)
    sequences = [drafting.start([(7 * i + j) % VOCAB for j in range(i + 1)], seed=i) for i in range(3)]
    for sequence in sequences:
        drafting.prefill(sequence, 2)
    drafting.accepted.clear()
    for _ in range(6):
        drafting.step(sequences, [drafting.drafter.max_drafts] * 3)
    assert drafting.accepted == [shape.depth] * 18


def test_prefix_hits_bring_their_entries(target: DraftedLM, tmp_path: Path) -> None:
    head, reference = third(target, tmp_path)
    drafting = Drafting(target, head, CHAIN, BLOCK, unset=7.0)
    first = drafting.start(prompt(14))
    drafting.prefill(first, 5)
    for tail, chunk in ((prompt(5, 1), 2), ([], 9)):
        sequence = hit(drafting, first, prompt(14)[:12] + tail, 3)
        before = drafting.kv[first.blocks[:3]].clone()
        drafting.prefill(sequence, chunk)
        assert torch.equal(drafting.kv[first.blocks[:3]], before)
        assert state_of(sequence).first_key == 1
        check(drafting, reference, sequence)


def test_a_lost_feature_begins_a_history(target: DraftedLM, tmp_path: Path) -> None:
    """Entries are there from the next token on, and a hit of these blocks knows."""
    head, reference = third(target, tmp_path)
    drafting = Drafting(target, head, CHAIN, BLOCK, unset=7.0)
    sequence = drafting.start(prompt(10))
    drafting.prefill(sequence, 5)
    # As after a preemption that swapped its KV.
    sequence.draft_states.clear()
    assert drafting.drafter.propose([sequence], [3]) == [None]
    lost = sequence.num_computed
    drafting.step([sequence], [0])
    assert state_of(sequence).first_key == lost + 1
    for count in (2, 3):
        tokens = list(sequence.token_ids)
        drafting.step([sequence], [count])
        expected = expected_chain(drafting, reference, tokens, count, first=lost + 1)
        assert drafting.trees == [DraftTree.chain(tuple(expected))]
    while sequence.num_computed < 16:
        drafting.step([sequence], [0])
    again = hit(drafting, sequence, [*sequence.token_ids[:16], 3, 4], 4)
    drafting.prefill(again)
    assert state_of(again).first_key == lost + 1
    tokens = list(again.token_ids)
    drafting.step([again], [3])
    expected = expected_chain(drafting, reference, tokens, 3, first=lost + 1)
    assert drafting.trees == [DraftTree.chain(tuple(expected))]


def test_a_block_taken_over_brings_the_entries_that_it_has(target: DraftedLM, tmp_path: Path) -> None:
    """Sealing gives each content one block: that of another sequence may have been written without a head."""
    head, reference = third(target, tmp_path)
    drafting = Drafting(target, head, CHAIN, BLOCK, unset=7.0)
    sequence, other = (drafting.start(prompt(10)) for _ in range(2))
    for own in (sequence, other):
        drafting.prefill(own, 5)
    drafting.step([sequence], [2])
    assert state_of(sequence).first_key == 1
    drafting.kv[other.blocks[1], target.config.num_layers :] = 0
    drafting.free.append(sequence.blocks[1])
    sequence.blocks[1] = other.blocks[1]
    sequence.num_sealed = 2
    # What the last entry saw it saw before.
    drafting.step([sequence], [1])
    tokens = list(sequence.token_ids)
    drafting.step([sequence], [3])
    assert state_of(sequence).first_key == 2 * BLOCK
    expected = expected_chain(drafting, reference, tokens, 3, first=2 * BLOCK)
    assert drafting.trees == [DraftTree.chain(tuple(expected))]


@pytest.mark.parametrize("length", [7, 8, 9])
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_another_worker_drafts_on(target: DraftedLM, tmp_path: Path, shape: DraftShape, length: int) -> None:
    """With the blocks of the context and one feature it proposes what the first worker would have."""
    head, _ = third(target, tmp_path)
    here, there = (Drafting(target, head, shape, BLOCK, unset=7.0) for _ in range(2))
    source = here.start(prompt(length))
    # A held prefill has no block for the token that it draws.
    source.blocks = source.blocks[: -(-length // BLOCK)]
    here.prefill(source, 3)
    carried = here.drafter.carried(source)
    sequence = there.start(prompt(length))
    there.kv[sequence.blocks[: len(source.blocks)]] = here.kv[source.blocks]
    sequence.num_computed = length
    sequence.token_ids.append(source.token_ids[-1])
    sequence.rules.advance(source.token_ids[-1])
    sequence.context_done = True
    there.drafter.adopt(sequence, carried)
    for count in (4, 2, 0, 3):
        for drafting, own in ((here, source), (there, sequence)):
            drafting.step([own], [count])
        assert there.trees == here.trees
        assert sequence.token_ids == source.token_ids
    assert there.accepted == here.accepted[1:]
    with pytest.raises(ValueError, match="a feature of 384 bytes, where 768 are read"):
        there.drafter.adopt(sequence, carried[:384])
    # Of a worker without a head: drafting begins at the next token.
    sequence.draft_states.clear()
    there.drafter.adopt(sequence, b"")
    assert there.drafter.propose([sequence], [3]) == [None]


def test_kv_of_a_worker_without_a_head(target: DraftedLM, tmp_path: Path) -> None:
    """Drafting begins with what is computed here; hits of such blocks know that they have no entries."""
    head, reference = third(target, tmp_path)
    drafting = Drafting(target, head, CHAIN, BLOCK, unset=math.nan)
    sequence = drafting.start(prompt(12))
    drafting.prefill(sequence)
    drafting.kv[sequence.blocks[:3], target.config.num_layers :] = math.nan
    sequence.draft_states.clear()
    drafting.drafter.adopt(sequence, b"")
    again = hit(drafting, sequence, [*prompt(12), 9, 8, 7], 3)
    drafting.prefill(again)
    assert state_of(again).first_key == 12
    tokens = list(again.token_ids)
    drafting.grow(again, 24)
    # What no entry was written to holds numbers in any pool of the engine.
    drafting.kv[again.blocks[4:], target.config.num_layers :] = 1e4
    drafting.step([again], [3])
    expected = expected_chain(drafting, reference, tokens, 3, first=12)
    assert drafting.trees == [DraftTree.chain(tuple(expected))]


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_slots_without_an_entry_are_never_read(folder: Path, tmp_path: Path, shape: DraftShape) -> None:
    """A backend that reads what it is told to, and a pool that is full of NaN."""
    model = load_model(folder, ops="torch", attention_backend="reference")
    head, reference = third(model, tmp_path, backend="reference")
    drafting = Drafting(model, head, shape, BLOCK, unset=math.nan)
    sequences = [drafting.start(prompt(length, length)) for length in (5, 11)]
    for sequence in sequences:
        drafting.prefill(sequence, 4)
    for count in (3, 0, 4):
        drafting.step(sequences, [count, count])
        for sequence in sequences:
            check(drafting, reference, sequence)
    sequences[0].draft_states.clear()
    drafting.step(sequences, [4, 4])
    drafting.step(sequences, [4, 4])
    assert all(tree is not None for tree in drafting.trees)
    assert all(bool(state_of(sequence).output.isfinite().all()) for sequence in sequences)
