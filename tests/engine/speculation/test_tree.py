"""Trees of drafts: what is one, and parts of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.tree import DraftTree


def test_the_likeliest_drafts_of_a_tree_come_first() -> None:
    tree = DraftTree((5, 6, 7, 8), (0, 0, 1, 2), confidence=(0.5, 0.4, 0.1, 0.3))
    kept = tree.first(3)
    assert kept is not None
    assert (kept.token_ids, kept.parents, kept.confidence) == ((5, 6, 8), (0, 0, 2), (0.5, 0.4, 0.3))
    assert tree.first(0) is None
    assert tree.first(4) is tree


def test_of_a_tree_that_does_not_tell_the_first_drafts_are_kept() -> None:
    kept = DraftTree((5, 6, 7, 8), (0, 0, 1, 2)).first(3)
    assert kept == DraftTree((5, 6, 7), (0, 0, 1))


def test_a_part_keeps_what_its_drafts_were_drawn_from() -> None:
    drawn = torch.eye(3)
    kept = DraftTree.chain((0, 1, 2), drawn).first(2)
    assert kept is not None
    assert torch.equal(kept.distributions, drawn[:2])


@given(data=st.data(), size=st.integers(1, 20))
def test_a_part_is_a_tree(data: st.DataObject, size: int) -> None:
    """With the likeliest drafts, each behind the one that it follows, also where many are as likely."""
    parents = tuple(data.draw(st.integers(0, node)) for node in range(size))
    sure = [1.0]
    for parent in parents:
        sure.append(sure[parent] * data.draw(st.sampled_from((0.0, 0.5, 1.0))))
    tree = DraftTree(tuple(range(size)), parents, confidence=tuple(sure[1:]))
    count = data.draw(st.integers(1, size))
    kept = tree.first(count)
    assert kept is not None
    assert len(kept.token_ids) == count
    # Tokens name the drafts.
    for token, parent in zip(kept.token_ids, kept.parents, strict=True):
        assert parents[token] == (kept.token_ids[parent - 1] + 1 if parent else 0)
    left = set(range(size)) - set(kept.token_ids)
    assert min(sure[token + 1] for token in kept.token_ids) >= max((sure[t + 1] for t in left), default=0.0)


@pytest.mark.parametrize(
    ("confidence", "distributions"),
    [
        ((0.5,), None),
        ((0.5, 0.6), None),
        ((1.5, 0.5), None),
        ((float("nan"), 0.5), None),
        ((0.5, 0.4), torch.eye(2)),
    ],
)
def test_confidence_that_is_none(confidence: tuple[float, ...], distributions: torch.Tensor | None) -> None:
    with pytest.raises(ValueError, match="confidence"):
        DraftTree.chain((1, 2), distributions, confidence)
