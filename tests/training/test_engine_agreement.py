"""What training says of a head is what the engine finds when it drafts with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.models.loader import load_model
from engine.speculation.eagle.config import Generation
from engine.speculation.eagle.drafter import DraftShape
from engine.speculation.eagle.loading import load_head
from tests.support.drafting import Drafting, features_of
from tests.training.conftest import Written, encode, numbered_prompts
from training.acceptance import guess_along
from training.answers import Answer
from training.config import TrainingConfig
from training.export import export_head, import_head
from training.teacher import Teacher
from training.train import Trainer

GUESSES, STEPS = 3, 12


@pytest.fixture(scope="module")
def head_folder(written: Written, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("head")
    config = TrainingConfig(
        steps=60, batch_tokens=150, unroll_steps=3, draft_vocab_size=200, measure_every=1000, held_out=2
    )
    trainer = Trainer(written.target, written.shards, folder, config)
    trainer.run(lambda progress: None)
    export_head(trainer.head, trainer.token_ids, written.model_dir, folder)
    return folder


def test_the_engine_accepts_what_training_says_it_will(written: Written, head_folder: Path) -> None:
    model = load_model(written.model_dir, ops="torch", attention_backend="sdpa")
    head = load_head(head_folder, Generation.THREE, model, attention_backend="sdpa")
    ours, token_ids = import_head(head_folder, written.target, torch.ones(3 * 64))
    teacher = Teacher(written.target, token_ids, "cpu")
    found, expected = [], []
    for number, prompt in zip(range(6), numbered_prompts(), strict=False):
        drafting = Drafting(model, head, DraftShape(GUESSES, 1, GUESSES, coupled=False))
        sequence = drafting.start(encode(prompt), seed=number)
        drafting.prefill(sequence)
        for _ in range(STEPS):
            drafting.step([sequence], [GUESSES])
        found.append(drafting.accepted[-STEPS:])
        tokens = torch.tensor(sequence.token_ids, dtype=torch.int32)
        features = features_of(model, drafting.drafter.points, sequence.token_ids[:-1])
        tail = len(tokens) - 1 - sequence.num_prompt
        answer = Answer(
            prompt.kind,
            True,
            sequence.num_prompt,
            tokens,
            features.bfloat16(),
            torch.zeros(tail, 64, dtype=torch.bfloat16),
            torch.zeros(tail),
        )
        passes = guess_along(ours, teacher, answer, GUESSES).passes()
        expected.append([taken - 1 for taken in passes[:STEPS]])
    assert sum(map(sum, expected)) > STEPS
    # The engine computes in fp32, training the LM head in bf16, which may turn a near-tie round.
    assert sum(map(sum, found)) == pytest.approx(sum(map(sum, expected)), rel=0.05), (found, expected)
    pairs = zip(found, expected, strict=True)
    alike = [one == other for left, right in pairs for one, other in zip(left, right, strict=True)]
    assert sum(alike) > 0.8 * len(alike), (found, expected)
