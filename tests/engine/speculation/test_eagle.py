"""EAGLE heads in the engine against the same heads computed densely, entry by entry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.models.base import CausalLM
from engine.models.loader import load_model
from engine.sequence import Sequence as EngineSequence
from engine.speculation.eagle.config import Generation
from engine.speculation.eagle.drafter import DraftShape
from engine.speculation.eagle.head import EagleHead
from engine.speculation.eagle.loading import load_head
from engine.speculation.eagle.state import EagleState
from engine.speculation.tree import DraftTree
from tests.support.drafting import Drafting, features_of
from tests.support.eagle_heads import (
    DenseHead,
    HeadShape,
    flat_config,
    layers_config,
    make_eagle1,
    make_eagle3,
    speculators_config,
    write_head,
)
from tests.support.reference_model import prompt
from tests.support.tiny_models import tiny_llama

CHAIN = DraftShape(depth=4, width=1, size=4, coupled=True)
TREE = DraftShape(depth=4, width=3, size=9, coupled=True)
SHAPES = {
    "plain": {},
    "reduced vocabulary": {"draft_vocab": 100},
    "another width": {"hidden": 48, "heads": 6, "draft_vocab": 120},
    "norms of features": {"fc_norm": True, "norm_before_residual": True, "norm_output": True},
    "norm before fusing": {"norm_before_fc": True, "attention_bias": True},
    "two layers": {"num_layers": 2, "rope_theta": 500.0, "entering": (0, 3)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("target"), layers=3)


@pytest.fixture(scope="module")
def target(folder: Path) -> CausalLM:
    return load_model(folder, ops="torch", attention_backend="sdpa")


def dense(model: CausalLM, shape: HeadShape, tensors: dict[str, torch.Tensor], head: EagleHead) -> DenseHead:
    shared = model.shared()
    own = tensors.get("embed_tokens.weight", shared.embedding)
    # The tiny model ties its LM head to its embedding.
    return DenseHead(shape, tensors, own, shared.embedding)


def third(
    model: CausalLM, folder: Path, backend: str = "sdpa", **settings: object
) -> tuple[EagleHead, DenseHead]:
    shape = HeadShape(model.config, **settings)
    tensors = make_eagle3(shape)
    common = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    write_head(folder, speculators_config(shape), common)
    head = load_head(folder, Generation.THREE, model, attention_backend=backend)
    return head, dense(model, shape, tensors, head)


def check(drafting: Drafting, reference: DenseHead, sequence: EngineSequence) -> None:
    """What is kept for the sequence is what the dense head makes of all its tokens and their features."""
    state = sequence.draft_state
    assert isinstance(state, EagleState)
    assert state.entries == sequence.num_tokens
    features = features_of(drafting.model, drafting.drafter.points, sequence.token_ids)
    fresh = replace(reference)
    for position in range(1, sequence.num_tokens):
        output = fresh.add(
            sequence.token_ids[position],
            fresh.fuse(features[position - 1]),
            position,
            list(range(position - 1)),
        )
    torch.testing.assert_close(state.output, output, atol=2e-4, rtol=2e-4)


def expected_chain(
    drafting: Drafting, reference: DenseHead, tokens: list[int], count: int, first: int = 1
) -> list[int]:
    """Greedy drafts of the dense head, which sees entries from `first` on."""
    features = features_of(drafting.model, drafting.drafter.points, tokens)
    fresh = replace(reference)
    for position in range(first, len(tokens)):
        seen = list(range(position - first))
        output = fresh.add(tokens[position], fresh.fuse(features[position - 1]), position, seen)
    drafts: list[int] = []
    while True:
        drafts.append(fresh.token(int(fresh.logits(output).argmax())))
        if len(drafts) == count:
            return drafts
        position = len(tokens) - 1 + len(drafts)
        output = fresh.add(drafts[-1], output, position, list(range(position - first)))


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("settings", SHAPES.values(), ids=SHAPES.keys())
def test_equals_the_dense_head(
    target: CausalLM, tmp_path: Path, settings: dict[str, object], block_size: int
) -> None:
    """Over chunks, drafts that are right and wrong, and sequences side by side."""
    head, reference = third(target, tmp_path, **settings)
    drafting = Drafting(target, head, CHAIN, block_size, unset=7.0)
    sequences = [drafting.start(prompt(length, length), seed=length) for length in (9, 1, 17)]
    for sequence, chunk in zip(sequences, (4, 5, 17), strict=True):
        drafting.prefill(sequence, chunk)
        check(drafting, reference, sequence)
    for counts in ([4, 1, 3], [2, 4, 0], [0, 0, 1], [1, 3, 4]):
        before = [list(sequence.token_ids) for sequence in sequences]
        drafting.step(sequences, counts)
        wanted = [tokens for tokens, count in zip(before, counts, strict=True) if count]
        for tree, tokens, count in zip(drafting.trees, wanted, [c for c in counts if c], strict=True):
            assert tree == DraftTree.chain(tuple(expected_chain(drafting, reference, tokens, count)))
        for sequence in sequences:
            check(drafting, reference, sequence)


def test_first_generation_equals_the_dense_head(target: CausalLM, tmp_path: Path) -> None:
    shape = HeadShape(target.config, num_layers=2)
    tensors = make_eagle1(shape)
    write_head(tmp_path, layers_config(shape), tensors, pickled=True)
    head = load_head(tmp_path, Generation.ONE, target, attention_backend="sdpa")
    reference = dense(target, shape, tensors, head)
    drafting = Drafting(target, head, CHAIN)
    sequence = drafting.start(prompt(11))
    drafting.prefill(sequence, 4)
    check(drafting, reference, sequence)
    for count in (3, 4, 1):
        tokens = list(sequence.token_ids)
        drafting.step([sequence], [count])
        assert drafting.trees == [DraftTree.chain(tuple(expected_chain(drafting, reference, tokens, count)))]
        check(drafting, reference, sequence)
