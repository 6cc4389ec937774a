"""The Kubernetes base on one machine: its spec and router configuration, with other addresses and sizes.

Ray, Redis and the router run before the supervisor comes, and after it is gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cluster import embedded_redis
from kvrelay import Client
from tests.deploy.manifests import BASE, only
from tests.support.live_cluster import LiveCluster, kvrelay_environment, live_cluster
from tests.support.ray_head import RayHead, free_port, ray_head
from tests.support.tiny_models import tiny_llama
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "A prompt that is long enough for several blocks of keys and values, and for a handover. " * 2
START_LIMIT_S = 120.0


class ExternalRouter:
    """`python -m router` with the base's router.json, on addresses of this machine."""

    def __init__(self, folder: Path, changes: dict[str, Any]) -> None:
        self._folder = folder
        values = json.loads((BASE / "router.json").read_text())
        for door in ("http_port", "grpc_port", "admin_port"):
            values[door] = free_port()
        values |= {"host": "127.0.0.1", "admin_host": "127.0.0.1"}
        values |= {"local_prefill_tokens": 0, "drain_timeout_s": 5} | changes
        self.http_url = f"http://127.0.0.1:{values['http_port']}"
        self.grpc_address = f"127.0.0.1:{values['grpc_port']}"
        self.admin_address = f"127.0.0.1:{values['admin_port']}"
        self._config = folder / "router.json"
        self._config.write_text(json.dumps(values))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / "router.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "router", "--config", str(self._config)],
                env=kvrelay_environment(self._folder),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(lambda: self._status("/health") == 200, START_LIMIT_S)

    @property
    def ready(self) -> bool:
        return self._status("/ready") == 200

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _status(self, path: str) -> int:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "router.log").read_text()
        try:
            return httpx.get(self.http_url + path, timeout=5.0).status_code
        except httpx.TransportError:
            return 0


@dataclass
class Installation:
    """All that `kubectl apply` would start."""

    ray: RayHead
    router: ExternalRouter
    cluster: LiveCluster


def _settings(model: Path, redis_url: str, ray: RayHead, router: ExternalRouter) -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load((BASE / "spec.yaml").read_text())
    for role in ("prefill", "decode"):
        spec[role]["threads"] = 1
    spec["router"]["external"] = [router.admin_address]
    return spec | {
        "model": str(model),
        "kv_memory": "16MiB",
        "redis": {"url": redis_url},
        "ray": {"address": ray.address},
        "health": {"drain_timeout_s": 2},
        "debug": {"check_invariants": True},
    }


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("installation")
    model = tiny_llama(folder / "tiny")
    offered: dict[str, float] = {}
    for group in only("RayCluster", "kvrelay")["spec"]["workerGroupSpecs"]:
        offered |= json.loads(json.loads(group["rayStartParams"]["resources"]))
    with ExitStack() as stack:
        redis = stack.enter_context(embedded_redis.start(folder / "redis.log"))
        ray = stack.enter_context(ray_head(folder / "ray.log", offered))
        router = ExternalRouter(
            folder, {"model_dir": str(model), "served_name": "tiny", "redis_url": redis.url}
        )
        stack.callback(router.kill)
        router.start()
        assert not router.ready, "nobody told it of workers"
        settings = _settings(model, redis.url, ray, router)
        cluster = stack.enter_context(live_cluster(folder, settings, ray.environment))
        yield Installation(ray, router, cluster)


def test_an_answer_comes_through_the_router(installation: Installation) -> None:
    wait_until(lambda: installation.router.ready)
    with Client(installation.router.grpc_address) as client:
        generation = client.generate(PROMPT, max_tokens=12, temperature=0.0, trace=True)
        again = client.generate(PROMPT, max_tokens=12, temperature=0.0)
    assert generation.timeline is not None
    assert (generation.timeline.transport, generation.timeline.local_prefill) == ("nixl", False)
    assert again.token_ids == generation.token_ids
    assert again.usage.cached_tokens > 0


def test_workers_took_the_resources_of_their_role(installation: Installation) -> None:
    left = installation.ray.ask("[ray.cluster_resources(), ray.available_resources()]")
    assert isinstance(left, list)
    offered, available = left
    for resource in ("kvrelay_prefill", "kvrelay_decode"):
        assert offered[resource] == 1
        assert available.get(resource, 0) == 0


def test_commands_find_the_router_or_say_where_to_look(installation: Installation) -> None:
    result = installation.cluster.command("status", "--json")
    assert result.returncode == 0, result.stderr
    status = json.loads(result.stdout)
    assert status["phase"] == "ready"
    assert status["admin_address"] == installation.router.admin_address
    assert status["router"]["index_available"]
    assert {worker["id"] for worker in status["workers"] if worker["healthy"]} == {"prefill-0", "decode-0"}
    assert "router" not in {process["name"] for process in status["processes"]}
    assert installation.router.admin_address in installation.cluster.command("status").stdout
    generate = installation.cluster.command("generate", "hello")
    assert generate.returncode == 1
    assert "routers that run elsewhere" in generate.stderr


def test_a_router_that_restarts_serves_again(installation: Installation) -> None:
    installation.router.kill()
    wait_until(lambda: not installation.cluster.state.admin_address)
    installation.router.start()
    wait_until(lambda: installation.router.ready)
    with Client(installation.router.grpc_address) as client:
        assert client.generate(PROMPT, max_tokens=4, temperature=0.0).token_ids


def test_a_worker_that_dies_is_replaced_and_the_router_told(installation: Installation) -> None:
    cluster = installation.cluster
    pid = cluster.kill("decode-0")
    wait_until(
        lambda: any(r.name == "decode-0" and r.pid != pid for r in cluster.state.processes), START_LIMIT_S
    )
    wait_until(lambda: installation.router.ready)
    with Client(installation.router.grpc_address) as client:
        assert client.generate(PROMPT, max_tokens=4, temperature=0.0).token_ids


def test_everything_else_outlives_the_supervisor(installation: Installation) -> None:
    """The last: it ends the deployment."""
    process = installation.cluster.process
    workers = [record.pid for record in installation.cluster.state.processes if record.node_id]
    assert len(workers) == 2
    process.terminate()
    assert process.wait(START_LIMIT_S) == 0, installation.cluster.output
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))
    wait_until(lambda: not installation.router.ready)
    left = installation.ray.ask("ray.available_resources()")
    assert isinstance(left, dict)
    assert left["kvrelay_prefill"] == left["kvrelay_decode"] == 1
