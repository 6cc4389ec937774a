"""Prompt lookup before a drafter with a model: who drafts when, and what is learnt of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.models.features import FeaturePoints
from engine.sequence import Sequence as EngineSequence
from engine.speculation.base import Target, TargetPass
from engine.speculation.config import SpeculationConfig
from engine.speculation.lookup_first import LookupFirst
from engine.speculation.registry import create_drafter
from engine.speculation.tree import DraftTree
from tests.engine.digest_model import DigestModel
from tests.support.drafting import new_sequence

VOCAB = 100
MODEL = 99
"""What the model drafts unless told otherwise."""


class Model:
    """A drafter that says what it is told, and notes what it was asked."""

    points: FeaturePoints | None = FeaturePoints((1,))
    num_layers = 1
    max_drafts = 3

    def __init__(self) -> None:
        self.says: Callable[[EngineSequence], int | None] = lambda sequence: MODEL
        self.asked: list[tuple[EngineSequence, int]] = []
        self.calls: list[object] = []

    def propose(
        self, sequences: Sequence[EngineSequence], counts: Sequence[int]
    ) -> Sequence[DraftTree | None]:
        self.asked += zip(sequences, counts, strict=True)
        said = [self.says(sequence) for sequence in sequences]
        return [None if token is None else DraftTree.chain((token,)) for token in said]

    def extend(self, found: TargetPass) -> None:
        self.calls.append(found)

    def complete(self, sequence: EngineSequence) -> None:
        self.calls.append(sequence)

    def carried(self, sequence: EngineSequence) -> bytes:
        return b"carried"

    def adopt(self, sequence: EngineSequence, carried: bytes) -> None:
        self.calls.append(carried)


def sequence(tokens: Sequence[int], temperature: float = 0.0) -> EngineSequence:
    return new_sequence(tokens, VOCAB, temperature)


def ask(drafter: LookupFirst, *sequences: EngineSequence, count: int = 8) -> list[tuple[int, ...]]:
    trees = drafter.propose(sequences, [count] * len(sequences))
    return [() if tree is None else tree.token_ids for tree in trees]


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def drafter(model: Model) -> LookupFirst:
    return LookupFirst(model, shortest=2, longest=4, depth=6)


def test_the_text_is_asked_first(drafter: LookupFirst, model: Model) -> None:
    repeating, new = sequence([1, 2, 3, 4, 5, 6, 1, 2, 3]), sequence([1, 2, 3, 4, 5])
    assert ask(drafter, new, repeating) == [(MODEL,), (4, 5, 6, 1, 2, 3)]
    # No more than it can make at once; a match may be longer.
    assert model.asked == [(new, 3)]
    assert ask(drafter, repeating, count=2) == [(4, 5)]
    assert drafter.max_drafts == 6


def test_everything_else_is_the_models(drafter: LookupFirst, model: Model) -> None:
    assert (drafter.points, drafter.num_layers) == (model.points, model.num_layers)
    own, found = sequence([1, 2]), TargetPass((), None)
    drafter.extend(found)
    drafter.complete(own)
    drafter.adopt(own, b"carried")
    assert model.calls == [found, own, b"carried"]
    assert drafter.carried(own) == b"carried"


def test_nothing_comes_where_neither_knows(drafter: LookupFirst, model: Model) -> None:
    model.says = lambda sequence: None
    assert ask(drafter, sequence([1, 2, 3])) == [()]


def misled(drafter: LookupFirst, temperature: float = 0.0) -> None:
    """A text in which what follows two tokens that came before is always another, and the model is right."""
    text = sequence([1, 2], temperature)
    for follower in range(3, 90):
        ask(drafter, text)
        text.token_ids += [follower, 1, 2]


def test_matches_that_are_wrong_are_left_to_the_model(drafter: LookupFirst, model: Model) -> None:
    misled(drafter)
    text = sequence([1, 2, 3, 1, 2])
    assert ask(drafter, text) == [(MODEL,)]
    # Longer ones were not seen, and drawn answers are something else.
    assert ask(drafter, sequence([1, 2, 3, 4, 1, 2, 3])) == [(4, 1, 2, 3, 4, 1)]
    assert ask(drafter, sequence([1, 2, 3, 1, 2], temperature=1.0)) == [(3, 1, 2, 3, 1, 2)]


def test_matches_are_judged_while_the_model_drafts(drafter: LookupFirst, model: Model) -> None:
    """So that they are taken again when texts change."""
    misled(drafter)
    text = sequence([1, 2, 3])
    proposed = []
    for number in range(400):
        text.token_ids += [1, 2]
        proposed.append(ask(drafter, text)[0][0])
        text.token_ids += [3, number % 50 + 50]
    assert proposed[0] == MODEL
    assert proposed[-1] == 3


def test_a_model_that_is_always_right_is_preferred(drafter: LookupFirst, model: Model) -> None:
    """Where matches are not as good; both are learnt from what texts turn out to be."""
    texts = [sequence([number, 2]) for number in range(10, 60)]
    model.says = lambda own: own.num_tokens % 7 + 3
    for text in texts * 3:
        ask(drafter, text)
        text.token_ids += [text.num_tokens % 7 + 3]
    assert ask(drafter, sequence([1, 2, 3, 1, 2])) == [(5 % 7 + 3,)]


@pytest.mark.parametrize("method", ["none", "ngram", "suffix"])
def test_a_method_without_a_model_refuses_it_by_name(method: str) -> None:
    target = Target(DigestModel(), torch.empty(0), EngineConfig(Path("unused")), 1000)
    with pytest.raises(ValueError, match=f"lookup_first is true, but method is '{method}'"):
        create_drafter(SpeculationConfig(method, lookup_first=True), target)
