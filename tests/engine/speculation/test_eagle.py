"""EAGLE heads in the engine against the same heads computed densely, entry by entry."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.models.base import DraftedLM
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
    layers_config,
    make_eagle1,
    make_eagle3,
    speculators_config,
    write_head,
)
from tests.support.reference_model import prompt
from tests.support.tiny_families import WINDOW, tiny_variety
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
def target(folder: Path) -> DraftedLM:
    return load_model(folder, ops="torch", attention_backend="sdpa")


def dense(model: DraftedLM, shape: HeadShape, tensors: dict[str, torch.Tensor], head: EagleHead) -> DenseHead:
    shared = model.shared()
    own = tensors.get("embed_tokens.weight", shared.embedding)
    # The tiny model ties its LM head to its embedding.
    return DenseHead(shape, tensors, own, shared.embedding)


def third(
    model: DraftedLM, folder: Path, backend: str = "sdpa", **settings: object
) -> tuple[EagleHead, DenseHead]:
    shape = HeadShape(model.config, **settings)
    tensors = make_eagle3(shape)
    common = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    write_head(folder, speculators_config(shape), common)
    head = load_head(folder, Generation.THREE, model, attention_backend=backend)
    return head, dense(model, shape, tensors, head)


def check(drafting: Drafting, reference: DenseHead, sequence: EngineSequence) -> None:
    """What is kept for the sequence is what the dense head makes of all its tokens and their features."""
    drafting.drafter.complete(sequence)
    state = sequence.draft_states[drafting.drafter]
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


def expected_tree(
    drafting: Drafting, reference: DenseHead, tokens: list[int], shape: DraftShape
) -> set[tuple[int, ...]]:
    """EAGLE-2 by the paper: each level's `width` best of width x width are expanded, the best of all taken.

    Returns the paths of the drafts.
    """
    features = features_of(drafting.model, drafting.drafter.points, tokens)
    fresh = replace(reference)
    for position in range(1, len(tokens)):
        seen = list(range(position - 1))
        output = fresh.add(tokens[position], fresh.fuse(features[position - 1]), position, seen)
    history = list(range(len(tokens) - 1))
    found: list[tuple[float, tuple[int, ...]]] = []
    level = [(0.0, (), output, history)]
    for depth in range(1, shape.depth + 1):
        children = []
        for score, path, output, seen in level:
            log_probs, drafts = fresh.logits(output).log_softmax(dim=0).topk(shape.width)
            for log_prob, draft in zip(log_probs.tolist(), drafts.tolist(), strict=True):
                children.append((score + log_prob, (*path, fresh.token(draft)), output, seen))
        found += [(score, path) for score, path, _, _ in children]
        level = []
        for score, path, output, seen in sorted(children, key=lambda child: -child[0])[: shape.width]:
            own = len(fresh.entries[0])
            output = fresh.add(path[-1], output, len(tokens) - 1 + depth, seen)
            level.append((score, path, output, [*seen, own]))
    return {path for _, path in sorted(found, key=lambda one: -one[0])[: shape.size]}


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    return set(listed_paths_of(tree))


def listed_paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append((*paths[parent], token))
    return paths[1:]


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_a_head_beside_several_layer_groups(tmp_path: Path, shape: DraftShape) -> None:
    """Its KV lies in the blocks of the full history; the model's windows move on beside it."""
    folder = tiny_variety(tmp_path / "target", "qwen2 windows")
    target = load_model(folder, ops="torch", attention_backend="sdpa")
    assert [group.window for group in target.config.layer_groups] == [0, WINDOW, WINDOW]
    head, reference = third(target, tmp_path / "head", entering=(0, 1, 3))
    drafting = Drafting(target, head, shape, unset=7.0)
    sequence = drafting.start(prompt(2 * WINDOW, 5), seed=5)
    drafting.prefill(sequence, 7)
    check(drafting, reference, sequence)
    for _ in range(4):
        tokens = list(sequence.token_ids)
        drafting.step([sequence], [shape.size])
        (tree,) = drafting.trees
        assert tree is not None
        if shape is CHAIN:
            expected = expected_chain(drafting, reference, tokens, shape.depth)
            assert tree == DraftTree.chain(tuple(expected))
        else:
            assert paths_of(tree) == expected_tree(drafting, reference, tokens, shape)
        check(drafting, reference, sequence)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("settings", SHAPES.values(), ids=SHAPES.keys())
def test_equals_the_dense_head(
    target: DraftedLM, tmp_path: Path, settings: dict[str, object], block_size: int
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


def test_first_generation_equals_the_dense_head(target: DraftedLM, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("settings", [SHAPES["plain"], SHAPES["two layers"]], ids=["plain", "two layers"])
def test_trees_are_those_of_the_paper(
    target: DraftedLM, tmp_path: Path, settings: dict[str, object], block_size: int
) -> None:
    head, reference = third(target, tmp_path, draft_vocab=90, **settings)
    shape = DraftShape(depth=4, width=3, size=12, coupled=True)
    drafting = Drafting(target, head, shape, block_size, unset=7.0)
    sequences = [drafting.start(prompt(length, length), seed=length) for length in (13, 2)]
    for sequence in sequences:
        drafting.prefill(sequence, 5)
    for _ in range(3):
        before = [list(sequence.token_ids) for sequence in sequences]
        drafting.step(sequences, [12, 12])
        for tree, tokens in zip(drafting.trees, before, strict=True):
            assert tree is not None
            assert paths_of(tree) == expected_tree(drafting, reference, tokens, shape)
        for sequence in sequences:
            check(drafting, reference, sequence)


def test_a_tree_has_at_most_what_is_wanted_and_what_fits(target: DraftedLM, tmp_path: Path) -> None:
    """The best of fewer; and where blocks are short no node is expanded that has no slot."""
    head, reference = third(target, tmp_path)
    shape = DraftShape(depth=3, width=4, size=20, coupled=True)
    drafting = Drafting(target, head, shape)
    sequence = drafting.start(prompt(7))
    drafting.prefill(sequence)
    (tree,) = drafting.drafter.propose([sequence], [9])
    assert tree is not None
    assert tree.parents == (0, 0, 0, 0)
    drafting.grow(sequence, sequence.num_tokens + 12)
    for count in (1, 2, 5, 20):
        (tree,) = drafting.drafter.propose([sequence], [count])
        assert tree is not None
        wanted = expected_tree(drafting, reference, sequence.token_ids, replace(shape, size=count))
        assert paths_of(tree) == wanted


def path_probabilities(
    drafting: Drafting, reference: DenseHead, tokens: list[int], paths: set[tuple[int, ...]]
) -> dict[tuple[int, ...], float]:
    """What the dense head gives the tokens of each path together, all of whose beginnings are paths too."""
    features = features_of(drafting.model, drafting.drafter.points, tokens)
    fresh = replace(reference)
    for position in range(1, len(tokens)):
        seen = list(range(position - 1))
        output = fresh.add(tokens[position], fresh.fuse(features[position - 1]), position, seen)
    states = {(): (0.0, output, list(range(len(tokens) - 1)))}
    for path in sorted(paths, key=len):
        score, before, seen = states[path[:-1]]
        log_probs = fresh.logits(before).log_softmax(dim=0)
        drafts = [fresh.token(draft) for draft in range(len(log_probs))]
        score += float(log_probs[drafts.index(path[-1])])
        own = len(fresh.entries[0])
        output = fresh.add(path[-1], before, len(tokens) - 1 + len(path), seen)
        states[path] = score, output, [*seen, own]
    return {path: math.exp(states[path][0]) for path in paths}


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_drafts_say_how_likely_they_are_and_those_that_are_not_enough_are_left_out(
    target: DraftedLM, tmp_path: Path, shape: DraftShape
) -> None:
    head, reference = third(target, tmp_path, draft_vocab=90)
    drafting = Drafting(target, head, shape)
    sequence = drafting.start(prompt(13))
    drafting.prefill(sequence)
    drafting.grow(sequence, sequence.num_tokens + 12)

    def paths(least: float) -> set[tuple[int, ...]]:
        drafting.drafter._shape = replace(shape, least=least)
        (tree,) = drafting.drafter.propose([sequence], [shape.size])
        return set() if tree is None else paths_of(tree)

    every = paths(0.0)
    probabilities = path_probabilities(drafting, reference, sequence.token_ids, every)
    (tree,) = drafting.drafter.propose([sequence], [shape.size])
    assert tree is not None
    assert tree.confidence == pytest.approx([probabilities[path] for path in listed_paths_of(tree)], rel=1e-4)
    for bound in sorted(probabilities.values()):
        for least in (0.999 * bound, 1.001 * bound):
            assert paths(least) == {path for path in every if probabilities[path] >= least}
    assert paths(1.0) == set()


def greedy(model: DraftedLM, head: EagleHead, tokens: list[int], count: int, **kinds: object) -> list[int]:
    """Without drafts."""
    drafting = Drafting(model, head, CHAIN, **kinds)
    sequence = drafting.start(tokens)
    drafting.prefill(sequence)
    while sequence.num_tokens < len(tokens) + count:
        drafting.step([sequence], [0])
    return sequence.token_ids


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_tokens_are_those_without_drafts(
    target: DraftedLM, tmp_path: Path, shape: DraftShape, block_size: int
) -> None:
    head, _ = third(target, tmp_path)
    prompts = [prompt(length, length) for length in (6, 70, 1)]
    drafting = Drafting(target, head, shape, block_size, num_blocks=500)
    sequences = [drafting.start(tokens) for tokens in prompts]
    for sequence in sequences:
        drafting.prefill(sequence, 7)
    for _ in range(12):
        drafting.step(sequences, [drafting.drafter.max_drafts] * 3)
    for sequence, tokens in zip(sequences, prompts, strict=True):
        count = sequence.num_tokens - len(tokens)
        assert (
            sequence.token_ids == greedy(target, head, tokens, count, num_blocks=500)[: sequence.num_tokens]
        )


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_on_the_cpus_own_kernels(folder: Path, tmp_path: Path, shape: DraftShape) -> None:
    """Operations whose results lie in buffers that the next call overwrites."""
    model = load_model(folder, ops="cpu")
    for name, settings in SHAPES.items():
        head, reference = third(model, tmp_path / name, backend="auto", **settings)
        drafting = Drafting(model, head, shape, unset=7.0)
        sequences = [drafting.start(prompt(length, length), seed=length) for length in (9, 17)]
        for sequence in sequences:
            drafting.prefill(sequence, 6)
        for _ in range(2):
            before = [list(sequence.token_ids) for sequence in sequences]
            drafting.step(sequences, [drafting.drafter.max_drafts] * 2)
            for tree, tokens, sequence in zip(drafting.trees, before, sequences, strict=True):
                check(drafting, reference, sequence)
                assert tree is not None
                if shape is CHAIN:
                    assert list(tree.token_ids) == expected_chain(drafting, reference, tokens, CHAIN.depth)
                else:
                    assert paths_of(tree) == expected_tree(drafting, reference, tokens, shape)


def test_contexts_beyond_the_heads_own_limit(target: DraftedLM, tmp_path: Path) -> None:
    """Heads are published with far shorter limits than their models have; rotary angles know none."""
    head, reference = third(target, tmp_path)
    assert head.config.layers.max_position_embeddings == 64
    drafting = Drafting(target, head, CHAIN, 16)
    sequence = drafting.start(prompt(90))
    drafting.prefill(sequence, 32)
    check(drafting, reference, sequence)
