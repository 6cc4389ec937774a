"""Medusa heads: what they guess by the definition, their trees, and heads that are always right."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from engine.api import EngineRequest, SamplingParams
from engine.config import EngineConfig
from engine.models.base import DraftedLM
from engine.models.errors import CheckpointError
from engine.models.features import FeaturePoints
from engine.models.loader import load_model
from engine.speculation.base import Extent, Target, TargetPass
from engine.speculation.config import SpeculationConfig
from engine.speculation.medusa.choices import default_choices, in_order
from engine.speculation.medusa.drafter import MedusaDrafter
from engine.speculation.medusa.loading import load_heads
from engine.speculation.registry import create_drafter
from tests.support.drafting import features_of, new_sequence
from tests.support.markov import VOCAB, markov_model, permutation
from tests.support.medusa_heads import Tensors, dense_logits, make_medusa, write_medusa
from tests.support.speculation import run_alone, speculating
from tests.support.tiny_models import tiny_llama

FINAL = FeaturePoints(final=True)
NUM_HEADS, NUM_BLOCKS = 4, 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DraftedLM:
    torch.set_num_threads(1)
    return load_model(tiny_llama(tmp_path_factory.mktemp("target")), ops="torch", attention_backend="sdpa")


@pytest.fixture(scope="module")
def tensors(model: DraftedLM) -> Tensors:
    return make_medusa(model.config, NUM_HEADS, NUM_BLOCKS)


def make(model: DraftedLM, config: SpeculationConfig) -> MedusaDrafter:
    drafter = create_drafter(config, Target(model, torch.empty(0), EngineConfig(Path("unused")), 100))
    assert isinstance(drafter, MedusaDrafter)
    return drafter


@pytest.mark.parametrize("pickled", [True, False])
def test_guesses_are_those_of_the_definition(
    model: DraftedLM, tensors: Tensors, tmp_path: Path, pickled: bool
) -> None:
    folder = write_medusa(
        tmp_path, tensors, pickled, medusa_num_heads=NUM_HEADS, medusa_num_layers=NUM_BLOCKS
    )
    choices = ((0,), (1,), (0, 0), (0, 2), (1, 0), (0, 0, 1), (0, 0, 1, 0))
    config = SpeculationConfig(
        "medusa", folder, num_speculative_tokens=4, eagle_topk=3, medusa_choices=choices
    )
    drafter = make(model, config)
    assert (drafter.points, drafter.num_layers, drafter.max_drafts) == (FINAL, 0, len(choices))
    texts = [torch.randint(256, (9,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(3)]
    sequences = [new_sequence(text, model.config.vocab_size, seed=i) for i, text in enumerate(texts)]
    features = [features_of(model, FINAL, text[:-1]) for text in texts]
    extents = tuple(
        Extent(sequence, 0, range(index * 8, index * 8 + 8), False)
        for index, sequence in enumerate(sequences)
    )
    assert drafter.propose(sequences, [9, 9, 9]) == [None] * 3
    drafter.extend(TargetPass(extents, torch.cat(features)))
    proposed = drafter.propose(sequences, [9, 9, 3])
    for index, (tree, feature) in enumerate(zip(proposed, features, strict=True)):
        ranked = [
            dense_logits(tensors, head, NUM_BLOCKS, feature[-1]).topk(3).indices.tolist()
            for head in range(NUM_HEADS)
        ]
        kept = choices[:3] if index == 2 else choices
        assert tree is not None
        assert tree.token_ids == tuple(ranked[len(choice) - 1][choice[-1]] for choice in kept)
        assert tree.parents == (0, 0, 1, 1, 2, 3, 6)[: len(kept)]
    # A feature of another place than the last token's tells nothing.
    sequences[0].token_ids.append(3)
    assert drafter.propose(sequences[:1], [4]) == [None]


def perfect_heads(folder: Path) -> Path:
    """Head i knows the token i + 2 places behind the feature's: its residual block adds nothing."""
    step, tensors = permutation(), {}
    reached = step
    for head in range(NUM_HEADS):
        reached = step @ reached
        tensors[f"{head}.0.linear.weight"] = torch.zeros(VOCAB, VOCAB)
        tensors[f"{head}.0.linear.bias"] = torch.zeros(VOCAB)
        tensors[f"{head}.1.weight"] = reached.clone()
    return write_medusa(folder, tensors)


@pytest.mark.parametrize("temperature", [0.0, 0.02])
@pytest.mark.parametrize(("topk", "drafts"), [(1, 4), (3, 12)])
def test_heads_that_know_are_right(tmp_path: Path, temperature: float, topk: int, drafts: int) -> None:
    """Each pass gives as many tokens as the tree is deep, and one more."""
    model = markov_model(tmp_path / "model")
    config = SpeculationConfig(
        "medusa", perfect_heads(tmp_path / "heads"), eagle_topk=topk, num_draft_tokens=drafts + 1
    )
    engine, _ = speculating(model, config, drafts)
    depth = max(map(len, default_choices(4, topk, drafts)))
    length = 1 + 8 * (depth + 1)
    params = SamplingParams(
        temperature=temperature, top_p=1.0, top_k=0, seed=0, choice=0, max_tokens=length, ignore_eos=True
    )
    answer, passes = run_alone(engine, EngineRequest("r", tuple(range(5)), params))
    tokens = [4, *answer]
    order = permutation().argmax(dim=0).tolist()
    assert all(after == order[before] for before, after in pairwise(tokens))
    assert len(tokens) == 1 + length
    assert passes == 1 + 8


def test_default_trees_grow_where_heads_are_sure() -> None:
    assert default_choices(3, 1, 3) == ((0,), (0, 0), (0, 0, 0))
    chosen = default_choices(4, 10, 63)
    assert len(set(chosen)) == 63
    assert {len(choice) for choice in chosen} == {1, 2, 3, 4}
    assert in_order(chosen, 4, 10, 63) == chosen, "parents stand before children"
    assert default_choices(4, 10, 20) == chosen[:20]
    assert default_choices(1, 2, 9) == ((0,), (1,))


def test_choices_come_behind_their_parents() -> None:
    assert in_order([(0, 1), (1,), (0, 1, 0), (0,)], 3, 2, 4) == ((1,), (0,), (0, 1), (0, 1, 0))
    assert in_order([], 3, 2, 4) == ()


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([(0,), (0,)], "names a node twice"),
        ([(0,), (0, 0), (1,), (2,), (3,)], "has 5 nodes, but there may be 4 beside the root"),
        ([(0,), (0, 0), (0, 0, 0)], r"has \[0, 0, 0\], but num_speculative_tokens allows 1 to 2 ranks"),
        ([()], r"has \[\], but num_speculative_tokens allows"),
        ([(5,)], r"has \[5\], but eagle_topk allows ranks below 5"),
        ([(0,), (1, 0)], r"has \[1, 0\], but not \[1\] before it"),
    ],
)
def test_choices_that_make_no_tree_are_refused(choices: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        in_order(choices, 2, 5, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "model must name the folder of heads for method 'medusa'"),
        ({"num_speculative_tokens": 5}, "num_speculative_tokens is 5, but must be at most 4: so many heads"),
        ({"medusa_choices": ((0,), (1,))}, r"has \[1\], but eagle_topk allows ranks below 1"),
        ({"model": Path("nowhere")}, "folder nowhere of the draft heads does not exist"),
    ],
    ids=str,
)
def test_settings_are_checked(
    model: DraftedLM, tensors: Tensors, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    config = SpeculationConfig("medusa", write_medusa(tmp_path, tensors))
    with pytest.raises(ValueError, match=message):
        make(model, replace(config, **change))  # type: ignore[arg-type]


def test_a_config_that_tells_another_number_of_heads_is_refused(
    model: DraftedLM, tensors: Tensors, tmp_path: Path
) -> None:
    folder = write_medusa(tmp_path, tensors, medusa_num_heads=2)
    with pytest.raises(CheckpointError, match="medusa_num_heads is 2, but the weights hold 4 heads"):
        load_heads(folder, model)
    write_medusa(tmp_path, tensors, medusa_num_layers=1)
    with pytest.raises(CheckpointError, match="medusa_num_layers is 1, but the weights hold 2 residual"):
        load_heads(folder, model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"1.0.linear.bias": None}, "weight '1.0.linear.bias' missing"),
        ({"3.2.weight": None, "2.2.weight": None}, "weights '2.2.weight', '3.2.weight' missing"),
        ({"4.0.linear.weight": torch.zeros(2)}, "'4.0.linear.bias', .* missing"),
        ({"extra": torch.zeros(1)}, "weight 'extra' unknown to Medusa heads"),
        ({"0.2.weight": torch.zeros(7, 64)}, r"'0.2.weight' has shape \[7, 64\] where .* \[259, 64\]"),
        ({"0.2.weight": torch.zeros(259, 64).int()}, "stored as torch.int32, which is not supported"),
    ],
    ids=str,
)
def test_heads_are_loaded_strictly(
    model: DraftedLM,
    tensors: Tensors,
    tmp_path: Path,
    changes: dict[str, torch.Tensor | None],
    message: str,
) -> None:
    changed = {name: tensor for name, tensor in {**tensors, **changes}.items() if tensor is not None}
    with pytest.raises(CheckpointError, match=message):
        load_heads(write_medusa(tmp_path, changed), model)


def test_other_files_are_refused(model: DraftedLM, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has none of .*medusa_lm_head\.pt"):
        load_heads(tmp_path, model)
    with pytest.raises(CheckpointError, match=r"there is no weight like .*, but weight 'fc"):
        load_heads(write_medusa(tmp_path, {"fc.weight": torch.zeros(1)}), model)
