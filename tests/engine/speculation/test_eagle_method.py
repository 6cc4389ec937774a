"""EAGLE heads as deployments name them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.kv.storage import allocate_pool
from engine.models.base import DraftedLM
from engine.models.errors import ModelError
from engine.models.loader import load_model
from engine.speculation.base import Target
from engine.speculation.config import SpeculationConfig
from engine.speculation.eagle.drafter import EagleDrafter
from engine.speculation.registry import create_drafter, draft_layers
from tests.support.eagle_heads import (
    HeadShape,
    flat_config,
    layers_config,
    make_eagle1,
    make_eagle3,
    write_head,
)
from tests.support.tiny_models import tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DraftedLM:
    return load_model(tiny_llama(tmp_path_factory.mktemp("target")), ops="torch", attention_backend="sdpa")


def make(model: DraftedLM, config: SpeculationConfig) -> EagleDrafter:
    pool = allocate_pool(model.config, 4, 16, torch.float32, draft_layers=draft_layers(config, model.config))
    drafter = create_drafter(config, Target(model, pool, EngineConfig(Path("unused")), 64))
    assert isinstance(drafter, EagleDrafter)
    return drafter


def test_methods_are_made_by_name(model: DraftedLM, tmp_path: Path) -> None:
    shape = HeadShape(model.config, num_layers=2)
    third = write_head(tmp_path / "3", flat_config(shape), make_eagle3(shape))
    first = write_head(tmp_path / "1", layers_config(shape), make_eagle1(shape))
    config = SpeculationConfig(method="eagle3", model=third, num_speculative_tokens=5, num_draft_tokens=24)
    assert make(model, config).max_drafts == 5
    tree = make(model, replace(config, eagle_topk=4))
    assert (tree.max_drafts, tree.num_layers) == (23, 2)
    chain = make(model, replace(config, method="eagle", model=first))
    assert chain.points is not None
    assert chain.points.final
    with pytest.raises(ModelError, match="EAGLE-3 is method 'eagle3'"):
        make(model, replace(config, method="eagle"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "model must name the folder of a head for method 'eagle3'"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0, but must be from 1 to 63"),
        ({"eagle_topk": 64}, "eagle_topk is 64, but must be from 1 to 63"),
        ({"draft_p_min": 1.5}, "draft_p_min is 1.5, but must be from 0 to 1"),
        ({"num_draft_tokens": 65}, "num_draft_tokens is 65, but must be from 2 to 64"),
        ({"model": Path("nowhere")}, "folder nowhere of the draft head does not exist"),
    ],
    ids=str,
)
def test_settings_are_checked(
    model: DraftedLM, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    shape = HeadShape(model.config)
    folder = write_head(tmp_path, flat_config(shape), make_eagle3(shape))
    config = replace(SpeculationConfig(method="eagle3", model=folder), **change)
    with pytest.raises(ValueError, match=message):
        make(model, config)


def test_a_pool_without_room_for_the_head_is_refused(model: DraftedLM, tmp_path: Path) -> None:
    shape = HeadShape(model.config)
    folder = write_head(tmp_path, flat_config(shape), make_eagle3(shape))
    config = SpeculationConfig(method="eagle3", model=folder)
    target = Target(
        model, allocate_pool(model.config, 4, 16, torch.float32), EngineConfig(Path("unused")), 64
    )
    with pytest.raises(ValueError, match="the pool has 3 layers, where model and head need 4"):
        create_drafter(config, target)


def test_other_methods_need_no_layers(model: DraftedLM) -> None:
    assert draft_layers(SpeculationConfig(), model.config) == 0
    assert draft_layers(SpeculationConfig(method="ngram"), model.config) == 0
    with pytest.raises(ValueError, match=r"'nope', but must be one of none, draft_model, eagle, eagle3, "):
        draft_layers(SpeculationConfig(method="nope"), model.config)
