"""What passes cost, measured on a real tiny model, and kept."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from engine.kv.storage import allocate_pool
from engine.models.base import CausalLM
from engine.models.loader import load_model
from engine.speculation.calibration import SIZES, calibrate, measure
from tests.support.clock import Clock
from tests.support.tiny_models import tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    return load_model(tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def kv(model: CausalLM) -> torch.Tensor:
    pool = allocate_pool(model.config, 4, 16, torch.float32)
    pool[1:] = 1.0
    return pool


def test_every_size_is_measured_and_only_scratch_is_written(model: CausalLM, kv: torch.Tensor) -> None:
    points = measure(model, kv, most=64).points
    assert [tokens for tokens, _ in points] == [size for size in SIZES if size <= 64]
    assert all(seconds > 0 for _, seconds in points)
    assert not kv[0].any()
    assert (kv[1:] == 1.0).all()


def test_a_slow_machine_is_measured_as_far_as_time_allows(model: CausalLM, kv: torch.Tensor) -> None:
    # Every pass takes a second by this clock, so the second one is over budget.
    measured = measure(model, kv, most=64, clock=Clock(step_s=1.0), budget_s=2.0)
    assert measured.points == ((1, 1.0),)
    assert not measured.is_whole


def test_what_a_busy_machine_gave_is_measured_anew(model: CausalLM, kv: torch.Tensor, tmp_path: Path) -> None:
    calibrate(model, kv, "ops", tmp_path, most=16, clock=Clock(step_s=0.1))
    assert not list(tmp_path.iterdir())
    calibrate(model, kv, "ops", tmp_path, most=16)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_machine_that_is_slow_for_a_while_is_measured_for_longer(model: CausalLM, kv: torch.Tensor) -> None:
    """By this clock it is so for about two rounds of two sizes, each with three readings."""
    readings = itertools.count()
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.010 if next(readings) < 12 else 0.001
        return now

    assert dict(measure(model, kv, most=2, clock=clock, budget_s=100.0).points) == {
        1: pytest.approx(0.001),
        2: pytest.approx(0.001),
    }


def test_a_warm_start_measures_nothing(model: CausalLM, kv: torch.Tensor, tmp_path: Path) -> None:
    first = calibrate(model, kv, "ops", tmp_path, most=16)
    (file,) = tmp_path.iterdir()
    again = calibrate(model, kv, "ops", tmp_path, most=16, clock=lambda: pytest.fail("measured"))
    assert again == first
    assert [tuple(point) for point in json.loads(file.read_text())] == list(first)


@pytest.mark.parametrize("spoilt", ["", "{", "[]", "[[1]]", "[[1, -2.0]]", '{"a": 1}', "[[0, 1.0]]"])
def test_a_file_of_no_use_is_written_anew(
    model: CausalLM, kv: torch.Tensor, tmp_path: Path, spoilt: str
) -> None:
    calibrate(model, kv, "ops", tmp_path, most=4)
    (file,) = tmp_path.iterdir()
    file.write_text(spoilt)
    points = calibrate(model, kv, "ops", tmp_path, most=4)
    assert len(points) == 4
    assert len(json.loads(file.read_text())) == 4


def test_other_settings_and_threads_are_measured_apart(
    model: CausalLM, kv: torch.Tensor, tmp_path: Path
) -> None:
    calibrate(model, kv, "cpu none", tmp_path, most=2)
    calibrate(model, kv, "cpu int8", tmp_path, most=2)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        calibrate(model, kv, "cpu none", tmp_path, most=2)
    finally:
        torch.set_num_threads(threads)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_that_cannot_be_written_does_no_harm(
    model: CausalLM, kv: torch.Tensor, tmp_path: Path
) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    assert calibrate(model, kv, "ops", taken, most=2)
