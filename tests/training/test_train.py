"""A head learns, goes on as if it had never stopped, and can be taken elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.models.errors import CheckpointError
from engine.models.loader import load_model
from engine.speculation.eagle.config import Generation
from engine.speculation.eagle.loading import load_head
from tests.training.conftest import Written
from training.answers import AnswerShard
from training.config import TrainingConfig
from training.dataset import Answers
from training.export import export_head, import_head
from training.train import Trainer, TrainingProgress

CONFIG = TrainingConfig(
    steps=60,
    batch_tokens=150,
    unroll_steps=3,
    draft_vocab_size=200,
    measure_every=1000,
    held_out=8,
    num_guesses=3,
    matrix_rate=4e-3,
    rate=4e-3,
)


def _trainer(written: Written, folder: Path, config: TrainingConfig, initial: Path | None = None) -> Trainer:
    folder.mkdir(exist_ok=True)
    return Trainer(written.target, written.shards, folder, config, initial)


def test_loss_falls_and_acceptance_rises(written: Written, tmp_path: Path) -> None:
    trainer = _trainer(written, tmp_path, CONFIG)
    before = trainer.measure()
    told: list[TrainingProgress] = []
    after = trainer.run(told.append)
    assert [progress.step for progress in told] == list(range(1, 61))
    assert told[-1].acceptance == after
    first, last = told[:5], told[-5:]
    assert sum(p.loss for p in last) < 0.8 * sum(p.loss for p in first)
    assert after.loss < before.loss
    assert after.tokens_per_pass > before.tokens_per_pass + 0.1
    assert after.sampled[0] > before.sampled[0]


def test_a_training_that_was_stopped_ends_where_one_that_was_not_does(
    written: Written, tmp_path: Path
) -> None:
    config = replace(CONFIG, steps=9)
    whole = _trainer(written, tmp_path / "whole", config)
    whole.run(lambda progress: None)

    class StoppedError(Exception):
        pass

    def stop(progress: TrainingProgress) -> None:
        if progress.step == 5:
            raise StoppedError

    part = _trainer(written, tmp_path / "part", config)
    with pytest.raises(StoppedError):
        part.run(stop, save_every_s=0.0)
    rest = _trainer(written, tmp_path / "part", config)
    assert rest.step == 5
    rest.run(lambda progress: None)
    for name, value in whole.head.state_dict().items():
        assert torch.equal(value, rest.head.state_dict()[name]), name


def test_a_head_can_be_taken_elsewhere_and_trained_on(written: Written, tmp_path: Path) -> None:
    trainer = _trainer(written, tmp_path / "work", replace(CONFIG, steps=20))
    reached = trainer.run(lambda progress: None)
    export_head(trainer.head, trainer.token_ids, written.model_dir, tmp_path / "head")
    config = json.loads((tmp_path / "head/config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["draft_vocab_size"], config["num_hidden_layers"]) == (200, 1)
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    tensors = load_file(tmp_path / "head/model.safetensors")
    ids = tensors["d2t"] + torch.arange(200)
    assert torch.equal(ids, trainer.token_ids)
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], ids)
    assert tensors["fc.weight"].dtype == torch.bfloat16
    again = _trainer(written, tmp_path / "again", CONFIG, tmp_path / "head")
    assert again.step == 0
    for name, value in trainer.head.state_dict().items():
        torch.testing.assert_close(again.head.state_dict()[name], value, rtol=1e-2, atol=1e-3)
    assert again.measure().tokens_per_pass == pytest.approx(reached.tokens_per_pass, abs=0.1)


def test_heads_of_another_form_are_refused(written: Written, tmp_path: Path) -> None:
    trainer = _trainer(written, tmp_path / "work", CONFIG)
    scale = trainer.head.feature_scale
    folder = tmp_path / "head"
    export_head(trainer.head, trainer.token_ids, written.model_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}))
    with pytest.raises(CheckpointError, match=r"must read layers \[2, 4, 5\]"):
        import_head(folder, written.target, scale)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        import_head(folder, written.target, scale)


def test_one_shard_is_too_few(written: Written, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two shards"):
        Trainer(written.target, written.shards[:1], tmp_path, CONFIG)


def test_each_pass_takes_every_answer_once_in_another_order(written: Written) -> None:
    answers = Answers([AnswerShard(path) for path in written.shards])
    passes = [answers.batches(seed=1, epoch=epoch, tokens=100) for epoch in (0, 1)]
    assert passes[0] != passes[1]
    assert passes[0] == answers.batches(seed=1, epoch=0, tokens=100)
    for batches in passes:
        numbers = [number for batch in batches for number in batch]
        assert len(set(numbers)) == len(numbers)
        assert set(numbers) <= set(range(len(answers)))
        assert len(answers) - len(numbers) < 6


def test_learning_rates_rise_stay_and_fall() -> None:
    config = TrainingConfig(steps=100, warm_up=9, cool_down=0.4)
    factors = [config.rate_at(step, 0.0) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:60] == pytest.approx([1.0] * 51)
    assert factors[60:] == sorted(factors[60:], reverse=True)
    assert 0 < factors[-1] < 0.05
    by_clock = replace(config, hours=2.0)
    assert [by_clock.rate_at(50, hours * 3600) for hours in (1.0, 1.6, 3.0)] == pytest.approx([1.0, 0.5, 0.0])


def test_a_training_by_the_clock_ends_by_it(written: Written, tmp_path: Path) -> None:
    told: list[TrainingProgress] = []
    trainer = _trainer(written, tmp_path, replace(CONFIG, steps=1, hours=0.3 / 3600))
    trainer.run(told.append)
    assert trainer.is_done
    assert told[-1].done == 1.0
    assert all(progress.done < 1.0 for progress in told[:-1])


def test_a_tied_head_guesses_with_the_embedding_and_stores_none(
    written_tied: Written, tmp_path: Path
) -> None:
    target, model_dir = written_tied.target, written_tied.model_dir
    trainer = _trainer(written_tied, tmp_path / "work", replace(CONFIG, steps=20))
    before = trainer.measure()
    after = trainer.run(lambda progress: None)
    assert after.loss < before.loss
    rows = target.embedding.index_select(0, trainer.token_ids)
    assert torch.equal(trainer.head.lm_head.weight, rows)
    export_head(trainer.head, trainer.token_ids, model_dir, tmp_path / "head")
    assert "lm_head.weight" not in load_file(tmp_path / "head/model.safetensors")
    assert json.loads((tmp_path / "head/config.json").read_text())["tie_word_embeddings"] is True
    again, token_ids = import_head(tmp_path / "head", target, torch.ones_like(trainer.head.feature_scale))
    assert again.config.tied
    assert torch.equal(again.lm_head.weight, rows)
    head = load_head(
        tmp_path / "head", Generation.THREE, load_model(model_dir, ops="torch"), attention_backend="sdpa"
    )
    outputs = torch.randn(3, target.config.hidden_size, generator=torch.manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(head.logits(outputs), again.lm_head(again.norm(outputs)))
    assert torch.equal(head.to_target(torch.arange(200)), token_ids)
    # It may be trained on with an LM head of its own.
    own = _trainer(written_tied, tmp_path / "own", replace(CONFIG, tied=False), tmp_path / "head")
    assert own.head.lm_head.weight.requires_grad
    torch.testing.assert_close(own.head.lm_head.weight, rows, rtol=1e-3, atol=1e-3)


def test_no_head_is_tied_to_an_lm_head_of_its_own(written: Written, tmp_path: Path) -> None:
    assert not _trainer(written, tmp_path, CONFIG).head.config.tied
    with pytest.raises(ValueError, match="LM head is not its embedding"):
        _trainer(written, tmp_path, replace(CONFIG, tied=True))
