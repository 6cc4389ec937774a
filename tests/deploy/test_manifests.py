"""The Kubernetes base: valid by schema, and consistent where a schema cannot look."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.architecture.source import ROOT
from tests.deploy.crd_schema import load_strict

BASE = ROOT / "deploy/k8s/base"
CRD = Path(__file__).with_name("raycluster-v1.7.0.schema.json")
NOT_MANIFESTS = {"kustomization.yaml", "spec.yaml"}
Document = dict[str, Any]


def _documents() -> Iterator[tuple[str, Document]]:
    for path in sorted(BASE.glob("*.yaml")):
        if path.name not in NOT_MANIFESTS:
            for document in yaml.safe_load_all(path.read_text()):
                yield f"{path.stem}-{document['kind']}-{document['metadata']['name']}", document


DOCUMENTS = dict(_documents())
CORE = {name: doc for name, doc in DOCUMENTS.items() if "ray.io" not in doc["apiVersion"]}
RAY = {name: doc for name, doc in DOCUMENTS.items() if "ray.io" in doc["apiVersion"]}


def _pod_templates(document: Document) -> list[Document]:
    spec = document["spec"]
    if document["kind"] == "Deployment":
        return [spec["template"]]
    if document["kind"] == "RayCluster":
        return [spec["headGroupSpec"]["template"], *(group["template"] for group in spec["workerGroupSpecs"])]
    return []


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
    for name in kustomization["configMapGenerator"][0]["files"]:
        assert (BASE / name).is_file()


def test_services_find_pods_and_ports() -> None:
    deployments = [doc for doc in CORE.values() if doc["kind"] == "Deployment"]
    services = [doc for doc in CORE.values() if doc["kind"] == "Service"]
    assert services
    for service in services:
        selector = service["spec"]["selector"]
        pods = [
            pod
            for deployment in deployments
            for pod in _pod_templates(deployment)
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


@pytest.mark.parametrize("name", sorted(name for name, doc in DOCUMENTS.items() if _pod_templates(doc)))
def test_containers_are_bounded_and_unprivileged(name: str) -> None:
    for template in _pod_templates(DOCUMENTS[name]):
        spec = template["spec"]
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            assert container["resources"]["limits"]["memory"]
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
            mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
            assert mounts <= {volume["name"] for volume in spec.get("volumes", [])}
