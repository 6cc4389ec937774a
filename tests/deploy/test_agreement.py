"""What the manifests, the spec and the router's configuration say of each other, and what the code can do."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import pytest
import yaml

from cluster.model_store.store import DEMO
from cluster.spec_loading import load_spec
from router.__main__ import load_config
from tests.architecture.source import ROOT
from tests.deploy.manifests import (
    BASE,
    DOCUMENTS,
    Document,
    all_pods,
    container,
    containers_of,
    mounts,
    only,
)

SPEC = load_spec(BASE / "spec.yaml")
ROUTER = load_config(BASE / "router.json")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / "deploy/docker/Dockerfile").read_text()
CLUSTER = only("RayCluster", "kvrelay")["spec"]
HEAD: Document = CLUSTER["headGroupSpec"]["template"]["spec"]
GROUPS = {group["groupName"]: group for group in CLUSTER["workerGroupSpecs"]}
ROUTERS = only("Deployment", "kvrelay-router")["spec"]
ROUTER_POD: Document = ROUTERS["template"]["spec"]


def _service_port(host: str) -> set[int]:
    return {port["port"] for port in only("Service", host)["spec"]["ports"]}


def _image_home() -> PurePosixPath:
    (home,) = re.findall(r"^ +KVRELAY_HOME=(\S+)$", DOCKERFILE, re.MULTILINE)
    return PurePosixPath(home)


def _pre_stop_s(one: Document) -> int:
    command, seconds = one["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    return int(seconds)


def test_routers_and_supervisor_mean_the_same_deployment() -> None:
    assert ROUTER.index_namespace == SPEC.name
    assert ROUTER.redis_url == SPEC.redis.url
    assert ROUTER.block_size == SPEC.block_size
    assert ROUTER.max_model_len == SPEC.max_model_len > 0
    assert ROUTER.served_name == (SPEC.served_name or SPEC.model)
    assert "router_id" not in json.loads((BASE / "router.json").read_text()), "replicas share the file"
    assert SPEC.router.max_running >= ROUTERS["replicas"] * ROUTER.max_running


def test_names_that_are_connected_to_are_services() -> None:
    for url in (SPEC.redis.url, ROUTER.redis_url):
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port in _service_port(parts.hostname)
    for endpoint in SPEC.router.external:
        host, port = endpoint.split(":")
        assert int(port) in _service_port(host)
        assert only("Service", host)["spec"]["clusterIP"] == "None", "each router must be told"
        assert only("Service", host)["spec"]["publishNotReadyAddresses"] is True


def test_the_router_listens_where_its_services_point() -> None:
    ports = {port["name"]: port["containerPort"] for port in container(ROUTER_POD, "router")["ports"]}
    assert ports == {"http": ROUTER.http_port, "grpc": ROUTER.grpc_port, "admin": ROUTER.admin_port}
    assert ROUTER.host == "0.0.0.0"
    assert ROUTER.admin_host == "0.0.0.0", "the supervisor is in another pod"
    annotations = ROUTERS["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ROUTER.http_port)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_each_worker_finds_a_pod_of_its_role(role: str) -> None:
    pool = getattr(SPEC, role)
    # Quoted once for the shell that starts Ray, once as JSON.
    offered = json.loads(json.loads(GROUPS[role]["rayStartParams"]["resources"]))
    assert offered == pool.resources
    assert list(pool.resources.values()) == [1.0], "one worker a pod"
    assert GROUPS[role]["replicas"] == pool.replicas
    other = SPEC.decode if role == "prefill" else SPEC.prefill
    assert not pool.resources.keys() & other.resources.keys()
    (worker,) = GROUPS[role]["template"]["spec"]["containers"]
    assert pool.threads <= int(worker["resources"]["requests"]["cpu"])
    kv_gib = SPEC.kv_memory / (1 << 30)
    assert kv_gib < int(worker["resources"]["requests"]["memory"].removesuffix("Gi"))


def test_the_supervisor_shares_what_a_ray_driver_needs() -> None:
    ray, supervisor = container(HEAD, "ray-head"), container(HEAD, "supervisor")
    assert HEAD["containers"][0] is ray, "the operator takes the first for Ray's"
    assert HEAD["shareProcessNamespace"] is True
    for path in ("/tmp/ray", "/dev/shm"):
        assert mounts(ray)[path] == mounts(supervisor)[path]
    assert "readinessProbe" not in supervisor
    (gcs,) = [port["containerPort"] for port in ray["ports"] if port["name"] == "gcs-server"]
    assert SPEC.ray.address == f"127.0.0.1:{gcs}"
    assert f"ray health-check --address {SPEC.ray.address}" in supervisor["args"][0]


def test_the_supervisor_knows_the_token_that_the_operator_makes() -> None:
    assert CLUSTER["authOptions"] == {"mode": "token"}
    environment = {one["name"]: one for one in container(HEAD, "supervisor")["env"]}
    assert environment["RAY_AUTH_MODE"]["value"] == "token"
    secret = environment["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert secret == {"name": only("RayCluster", "kvrelay")["metadata"]["name"], "key": "auth_token"}


def test_the_model_is_where_everybody_looks_for_it() -> None:
    home = _image_home()
    assert SPEC.model == DEMO
    assert PurePosixPath(ROUTER.model_dir) == home / "models" / SPEC.model
    pods = [HEAD, ROUTER_POD, *(group["template"]["spec"] for group in GROUPS.values())]
    for pod in pods:
        fetch = container(pod, "fetch-model")
        assert fetch["args"] == ["models", "import", SPEC.model]
        user = next(one for one in pod["containers"] if one["name"] != "ray-head")
        assert mounts(fetch)[str(home)] == mounts(user)[str(home)] == "home"


def test_files_are_read_where_they_are_mounted() -> None:
    (generated,) = yaml.safe_load((BASE / "kustomization.yaml").read_text())["configMapGenerator"]
    for pod, name, file in ((HEAD, "supervisor", "spec.yaml"), (ROUTER_POD, "router", "router.json")):
        reader = container(pod, name)
        (path,) = re.findall(rf"\S+/{re.escape(file)}", " ".join(reader["args"]))
        folder = str(PurePosixPath(path).parent)
        (volume,) = [one for one in pod["volumes"] if one["name"] == mounts(reader)[folder]]
        assert volume["configMap"]["name"] == generated["name"]
        assert file in generated["files"]


def test_one_image_of_this_version() -> None:
    images = {one["image"] for pod in all_pods() for one in containers_of(pod)}
    assert {image for image in images if "valkey" not in image} == {f"kvrelay:{PROJECT['version']}"}
    assert f"-t kvrelay:{PROJECT['version']}" in DOCKERFILE
    assert f"ray[default]=={CLUSTER['rayVersion']}" in PROJECT["dependencies"]


def test_running_requests_may_end_before_a_pod_is_killed() -> None:
    router = container(ROUTER_POD, "router")
    assert _pre_stop_s(router) + ROUTER.drain_timeout_s + 5 < ROUTER_POD["terminationGracePeriodSeconds"]
    ray = container(HEAD, "ray-head")
    assert SPEC.health.drain_timeout_s + 5 < _pre_stop_s(ray) < HEAD["terminationGracePeriodSeconds"]


def test_redis_forgets_nothing_by_itself() -> None:
    (redis,) = only("Deployment", "kvrelay-redis")["spec"]["template"]["spec"]["containers"]
    options = dict(zip(redis["args"][::2], redis["args"][1::2], strict=True))
    assert options["--maxmemory-policy"] == "noeviction"
    assert options["--appendonly"] == "no"
    megabytes = int(options["--maxmemory"].removesuffix("mb"))
    assert megabytes < int(redis["resources"]["limits"]["memory"].removesuffix("Gi")) * 1024


def test_ray_is_told_of_generated_names() -> None:
    """kustomize knows by itself only where core resources name a ConfigMap."""
    (rule,) = yaml.safe_load((BASE / "name-references.yaml").read_text())["nameReference"]
    assert rule["kind"] == "ConfigMap"
    known = {field["path"] for field in rule["fieldSpecs"] if field["kind"] == "RayCluster"}
    assert "spec/headGroupSpec/template/spec/volumes/configMap/name" in known
    assert {doc["kind"] for doc in DOCUMENTS.values()} == {"Service", "Deployment", "RayCluster"}
