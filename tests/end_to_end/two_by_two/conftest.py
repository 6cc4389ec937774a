from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvrelay import Client
from tests.end_to_end.two_by_two.long_request import LongRequest
from tests.support.live_cluster import LiveCluster, live_cluster
from tests.support.live_counts import quiet_around
from tests.support.tiny_models import tiny_llama

WORKERS = 4
MODEL = "deep"


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Deep enough for a step to take some 10 ms: faults must hit requests on their way."""
    return tiny_llama(tmp_path_factory.mktemp("model") / MODEL, layers=24)


@pytest.fixture(scope="package")
def deployment(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    settings = {
        "model": str(model),
        "kv_memory": "64MiB",
        "max_batched_tokens": 64,
        "prefill_chunk": 16,
        "prefill": {"replicas": 2},
        "decode": {"replicas": 2},
        "health": {"silence_s": 5.0},
        "debug": {"check_invariants": True},
    }
    with live_cluster(tmp_path_factory.mktemp("two_by_two"), settings) as running:
        yield running
        # Whatever was done to the others, the router met nothing that it did not foresee.
        assert running.state.log_dir is not None
        lines = (running.state.log_dir / "router.log").read_text().splitlines()
        assert [line for line in lines if json.loads(line)["level"] in ("error", "critical")] == []


@pytest.fixture(scope="package")
def expected(model: Path) -> LongRequest:
    return LongRequest.computed(model)


@pytest.fixture
def cluster(deployment: LiveCluster) -> Iterator[LiveCluster]:
    """Whole and quiet before the test and after it, whatever the test did."""
    with quiet_around(deployment, WORKERS):
        yield deployment


@pytest.fixture
def client(cluster: LiveCluster) -> Iterator[Client]:
    with Client(cluster.state.grpc_address, timeout=120.0, retries=0) as connected:
        yield connected
