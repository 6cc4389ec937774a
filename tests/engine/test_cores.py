"""Who computes on the cores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
import torch

from engine.models.cores import leave_cores_to_kernels
from engine.models.loader import load_model
from tests.support.tiny_models import tiny_llama


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("ops", "left"), [("cpu", 1), ("torch", 2)])
def test_torch_has_one_thread_where_kernels_compute(
    ops: str, left: int, tmp_path: Path, two_threads: None
) -> None:
    leave_cores_to_kernels(load_model(tiny_llama(tmp_path), ops=ops))
    assert torch.get_num_threads() == left
    # So it is for the thread that will run the engine.
    seen: list[int] = []
    thread = Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [left]
