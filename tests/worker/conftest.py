"""Workers in this process, joined by the in-process transport."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.tiny_models import tiny_llama


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_llama(tmp_path_factory.mktemp("tiny"))
