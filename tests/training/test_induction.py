"""A head that begins with attention that copies goes on as what it reads did before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.models.config import Rope
from tests.training.conftest import Written
from training.acceptance import guess_along
from training.answers import Answer, AnswerShard, write_shard
from training.config import TrainingConfig
from training.dataset import Answers, feature_scale
from training.head import Eagle3Head
from training.induction import FRESH, add_induction
from training.initial import new_head
from training.target import TargetWeights
from training.teacher import Teacher
from training.train import Trainer

HIDDEN, VOCAB, LENGTH = 96, 200, 40


def _target(written: Written, head_dim: int = 64) -> TargetWeights:
    config = replace(
        written.target.config,
        hidden_size=HIDDEN,
        num_heads=2,
        num_kv_heads=1,
        head_dim=head_dim,
        vocab_size=VOCAB,
        ropes=(Rope(head_dim, 1e6),) * written.target.config.num_layers,
    )
    embedding = torch.randn(VOCAB, HIDDEN, generator=torch.manual_seed(1))
    return TargetWeights(config, embedding, embedding, torch.ones(HIDDEN))


def _repeating(target: TargetWeights, seed: int) -> Answer:
    """Tokens at random, and the same again as the answer; features tell of a token and of the one before."""
    random = torch.manual_seed(seed)
    once = torch.randperm(VOCAB, generator=random)[:LENGTH]
    tokens = torch.cat((once, once))
    own = target.embedding[tokens]
    before = torch.cat((torch.zeros(1, HIDDEN), own[:-1]))
    # Told otherwise than the LM head understands.
    turned = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN, generator=torch.manual_seed(2))).Q
    told = (own + 0.5 * before + 0.3 * torch.randn(own.shape, generator=random)) @ turned
    parts = [own, before, told]
    count = LENGTH - 1
    return Answer(
        "repeated",
        True,
        LENGTH,
        tokens.int(),
        torch.cat(parts, dim=1)[:-1].bfloat16(),
        torch.zeros(count, HIDDEN, dtype=torch.bfloat16),
        torch.zeros(count),
    )


def _right(head: Eagle3Head, target: TargetWeights) -> float:
    """Share of the repeated tokens that are guessed."""
    teacher = Teacher(target, torch.arange(VOCAB), "cpu")
    found = [guess_along(head, teacher, _repeating(target, seed), 1).right for seed in range(100, 105)]
    return float(torch.cat(found, dim=1).float().mean())


@pytest.mark.parametrize("head_dim", [64, 96])
def test_a_new_head_copies(written: Written, tmp_path: Path, head_dim: int) -> None:
    target = _target(written, head_dim)
    write_shard(tmp_path / "answers-00000.safetensors", [_repeating(target, seed) for seed in range(40)])
    answers = Answers([AnswerShard(tmp_path / "answers-00000.safetensors")])
    ids = torch.arange(VOCAB)
    head = new_head(target, ids, feature_scale(answers, 40), seed=1, tied=True)
    assert _right(head, target) < 0.1
    assert add_induction(head, ids, target, answers, FRESH)
    assert _right(head, target) > 0.8


def test_small_heads_are_left_as_they_are(written: Written) -> None:
    """Four dimensions tell no tokens apart."""
    config = replace(written.target.config, num_heads=8, num_kv_heads=4, head_dim=8, ropes=(Rope(8, 1e4),))
    target = replace(written.target, config=config)
    answers = Answers([AnswerShard(path) for path in written.shards])
    ids = torch.arange(200)
    head = new_head(target, ids, feature_scale(answers, 40), seed=1, tied=False)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    assert not add_induction(head, ids, target, answers, FRESH)
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


def test_copying_is_refused_by_name_where_it_cannot_be(written: Written, tmp_path: Path) -> None:
    config = replace(written.target.config, num_heads=8, num_kv_heads=4, head_dim=8, ropes=(Rope(8, 1e4),))
    target = replace(written.target, config=config)
    settings = TrainingConfig(steps=1, draft_vocab_size=200)
    Trainer(target, written.shards, tmp_path, settings)
    with pytest.raises(ValueError, match=r"--copying: .* too few dimensions"):
        Trainer(target, written.shards, tmp_path, replace(settings, copying=True))
