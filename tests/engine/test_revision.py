"""Which changes of a model folder make it another model."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from engine.models.errors import CheckpointError
from engine.models.revision import model_revision
from tests.support.tiny_families import tiny_variety
from tests.support.tiny_models import tiny_llama


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "model")


def test_a_copy_is_the_same_model(folder: Path, tmp_path: Path) -> None:
    revision = model_revision(folder)
    assert re.fullmatch(r"[0-9a-f]{16}", revision)
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(dict(reversed(config.items())), indent=7))
    assert model_revision(copy) == revision


def test_other_weights_are_another_model(folder: Path, tmp_path: Path) -> None:
    assert model_revision(tiny_llama(tmp_path / "other", seed=1)) != model_revision(folder)


def test_one_changed_byte_at_the_end_of_a_tensor_shows(folder: Path) -> None:
    before = model_revision(folder)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert model_revision(folder) != before


def test_another_config_is_another_model(folder: Path) -> None:
    before = model_revision(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    assert model_revision(folder) != before


def test_the_context_length_counts_where_rotation_depends_on_it(tmp_path: Path) -> None:
    def revisions(folder: Path, *lengths: int) -> set[str]:
        return {model_revision(folder, context_length=length) for length in lengths}

    assert len(revisions(tiny_variety(tmp_path / "plain", "llama yarn"), 0, 50, 128)) == 1
    longrope = tiny_variety(tmp_path / "longrope", "phi3 longrope")
    assert len(revisions(longrope, 0, 33, 256)) == 1
    assert len(revisions(longrope, 0, 32)) == 2
    dynamic = tiny_variety(tmp_path / "dynamic", "llama dynamic")
    assert len(revisions(dynamic, 32, 33, 100)) == 3


def test_corrupt_weights_have_no_revision(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointError):
        model_revision(folder)


def test_quantised_weights_are_another_model(folder: Path) -> None:
    assert model_revision(folder, "none") == model_revision(folder)
    assert model_revision(folder, "int8") != model_revision(folder)
