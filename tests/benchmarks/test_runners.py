"""Runners and the processes that drive them."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from benchmarks.client_checks.catalogue import CLIENTS
from benchmarks.peers.gguf_files import write_gguf
from benchmarks.peers.process import ROOT, Command, Runner, RunnerError
from benchmarks.weights import bytes_read_per_token
from tests.support.tiny_models import tiny_llama
from tests.support.waiting import wait_until


def own_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])}


@pytest.mark.parametrize("command", [["benchmarks/engine.py"], ["-m", "benchmarks.engine"]])
def test_the_script_does_not_hide_the_package_of_its_name(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *command, "--help"], cwd=ROOT, env=own_environment(), capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert "--peers" in done.stdout


def test_a_script_beside_it_finds_the_package() -> None:
    code = "import sys; sys.path.insert(0, 'benchmarks'); import benchmarks, engine; print(engine.__file__)"

    found = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=own_environment(), text=True)

    assert Path(found.strip()) == ROOT / "engine" / "__init__.py"


def test_a_runner_serves_and_rests(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    settings = f'{{"model_dir": "{model}", "threads": 1, "ops": "torch", "num_blocks": 96}}'
    runner = Runner(Command("own", Path(sys.executable), "kvrelay", (settings,), {}), tmp_path / "log")
    try:
        runner.wait_ready()
        (child,) = psutil.Process().children()
        wait_until(lambda: child.status() == psutil.STATUS_STOPPED)
        first = runner.run([[5, 6, 7], [8, 9, 10]], 4)
        wait_until(lambda: child.status() == psutil.STATUS_STOPPED)
        assert [len(answer) for answer in first.token_ids] == [4, 4]
        assert all(0 < a <= b for seconds in first.seconds for a, b in pairwise(seconds))
        assert runner.run([[5, 6, 7]], 4).token_ids == first.token_ids[:1]
    finally:
        runner.close()
    assert not child.is_running()


def test_a_runner_that_ends_is_reported_with_its_log(tmp_path: Path) -> None:
    runner = Runner(Command("own", Path(sys.executable), "kvrelay", ("{}",), {}), tmp_path / "log")

    with pytest.raises(RunnerError, match="own ended"):
        runner.wait_ready()

    runner.close()


def test_gguf_has_the_same_weights_with_rotary_pairs_side_by_side(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    write_gguf(model, tmp_path / "model.gguf", gguf.GGMLQuantizationType.F32)

    weights = load_file(model / "model.safetensors")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    stored = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}

    assert len(stored) == len(weights)
    down = weights["model.layers.1.mlp.down_proj.weight"]
    np.testing.assert_array_equal(stored["blk.1.ffn_down.weight"], down)
    query = weights["model.layers.1.self_attn.q_proj.weight"]
    heads = reader.fields["llama.attention.head_count"].contents()
    half = query.shape[0] // heads // 2
    # Rows 0 and 1 of a head are the first pair: rows 0 and half of it in the half-split form.
    np.testing.assert_array_equal(stored["blk.1.attn_q.weight"][:2], query[[0, half]])


def test_the_input_embedding_counts_only_where_it_is_the_output_matrix_too(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    tied = '"tie_word_embeddings": true' in (model / "config.json").read_text()
    parameters = sum(weight.size for weight in weights.values())
    embedding = weights["model.embed_tokens.weight"].size

    assert bytes_read_per_token(model) == 4 * (parameters if tied else parameters - embedding)


def test_every_client_has_a_runner() -> None:
    for client in CLIENTS.values():
        assert (ROOT / "benchmarks" / "client_checks" / f"{client.module}.py").is_file()
