from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from engine.models.errors import CheckpointError
from tests.support.tiny_models import tiny_llama
from worker.revision import hash_model, model_revision


def test_equal_for_equal_folders(model_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(model_dir, tmp_path / "copy")
    assert model_revision(copy) == model_revision(model_dir)
    assert len(model_revision(model_dir)) == 32
    (copy / "README.md").write_text("no part of the model")
    assert model_revision(copy) == model_revision(model_dir)


def test_differs_with_weights_of_the_same_shapes(model_dir: Path, tmp_path: Path) -> None:
    assert model_revision(tiny_llama(tmp_path / "other", seed=1)) != model_revision(model_dir)


def test_differs_with_the_config(model_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(model_dir, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    assert model_revision(copy) != model_revision(model_dir)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="absent"):
        model_revision(tmp_path / "absent")


def test_hash_model_names_both() -> None:
    assert hash_model("tiny", "abc") == "tiny@abc"
