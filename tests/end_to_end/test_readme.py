"""The README's code blocks are run as they stand, only with the test deployment's addresses put in."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.support.live_cluster import LiveCluster, kvrelay_environment, live_cluster, run_kvrelay
from tests.support.tiny_models import tiny_llama

pytestmark = pytest.mark.cluster

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(language: str) -> list[str]:
    return [text for name, text in BLOCK.findall((ROOT / "README.md").read_text()) if name == language]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    folder = tmp_path_factory.mktemp("readme")
    settings = {"model": str(tiny_llama(folder / "tiny")), "served_name": "demo", "kv_memory": "16MiB"}
    with live_cluster(folder, settings) as running:
        yield running


def _addressed(block: str, cluster: LiveCluster) -> str:
    grpc = cluster.state.grpc_address
    return block.replace("http://127.0.0.1:8000", cluster.state.http_url).replace("127.0.0.1:8001", grpc)


def test_python_blocks_print_an_answer(cluster: LiveCluster) -> None:
    blocks = _blocks("python")
    assert len(blocks) == 2
    for block in blocks:
        run = subprocess.run(
            [sys.executable, "-c", _addressed(block, cluster)],
            env=kvrelay_environment(cluster.home),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert "prompt_tokens" in run.stdout


def test_curl_block_gets_a_completion(cluster: LiveCluster) -> None:
    (block,) = (text for text in _blocks("bash") if text.startswith("curl"))
    command = ["bash", "-c", _addressed(block, cluster)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout)
    assert answer["object"] == "chat.completion"
    assert answer["usage"]["completion_tokens"] > 0


def test_spec_block_is_valid(tmp_path: Path) -> None:
    (block,) = _blocks("yaml")
    spec = tmp_path / "spec.yaml"
    spec.write_text(block)
    validated = run_kvrelay(tmp_path / "home", "validate", str(spec))
    assert validated.returncode == 0, validated.stderr
