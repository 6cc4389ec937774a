"""The Kubernetes base: valid by schema, and consistent where a schema cannot look."""

from __future__ import annotations

import copy
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.crd_schema import load_strict
from tests.deploy.manifests import (
    BASE,
    CORE,
    DOCUMENTS,
    NOT_MANIFESTS,
    RAY,
    containers_of,
    mounts,
    pod_templates,
)

CRD = Path(__file__).with_name("raycluster-v1.7.0.schema.json")


@pytest.mark.parametrize("name", sorted(CORE))
def test_core_resources_are_strictly_valid(name: str) -> None:
    kubernetes_validate.validate(CORE[name], "1.37", strict=True)


@pytest.mark.parametrize("name", sorted(RAY))
def test_ray_resources_satisfy_the_crd(name: str) -> None:
    jsonschema.validate(RAY[name], load_strict(CRD))


def test_the_crd_check_can_fail() -> None:
    schema = load_strict(CRD)
    unknown = copy.deepcopy(next(iter(RAY.values())))
    unknown["spec"]["workerGroupSpecs"][0]["replica"] = 1
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate(unknown, schema)
    wrong_type = copy.deepcopy(next(iter(RAY.values())))
    wrong_type["spec"]["workerGroupSpecs"][0]["replicas"] = "one"
    with pytest.raises(jsonschema.ValidationError, match="one"):
        jsonschema.validate(wrong_type, schema)


def test_kustomization_lists_every_file() -> None:
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    manifests = {path.name for path in BASE.glob("*.yaml")} - NOT_MANIFESTS
    assert set(kustomization["resources"]) == manifests
    files = [*kustomization["configMapGenerator"][0]["files"], *kustomization["configurations"]]
    assert all((BASE / name).is_file() for name in files)


def test_services_find_pods_and_ports() -> None:
    deployments = [doc for doc in CORE.values() if doc["kind"] == "Deployment"]
    services = [doc for doc in CORE.values() if doc["kind"] == "Service"]
    assert services
    for service in services:
        selector = service["spec"]["selector"]
        pods = [
            pod
            for deployment in deployments
            for pod in pod_templates(deployment)
            if selector.items() <= pod["metadata"]["labels"].items()
        ]
        assert len(pods) == 1, service["metadata"]["name"]
        ports = {port["name"] for container in pods[0]["spec"]["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_deployments_select_their_own_pods() -> None:
    for document in CORE.values():
        if document["kind"] == "Deployment":
            labels = document["spec"]["template"]["metadata"]["labels"]
            assert document["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("name", sorted(name for name, doc in DOCUMENTS.items() if pod_templates(doc)))
def test_containers_are_bounded_and_unprivileged(name: str) -> None:
    for template in pod_templates(DOCUMENTS[name]):
        spec = template["spec"]
        for container in containers_of(spec):
            assert container["resources"]["limits"]["memory"]
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
            assert {*mounts(container).values()} <= {volume["name"] for volume in spec.get("volumes", [])}
