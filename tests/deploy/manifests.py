"""The Kubernetes base as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tests.architecture.source import ROOT

Document = dict[str, Any]

BASE = ROOT / "deploy/k8s/base"
# Read by kustomize and by kvrelay itself.
NOT_MANIFESTS = {"kustomization.yaml", "name-references.yaml", "spec.yaml"}


def _documents() -> Iterator[tuple[str, Document]]:
    for path in sorted(BASE.glob("*.yaml")):
        if path.name not in NOT_MANIFESTS:
            for document in yaml.safe_load_all(path.read_text()):
                yield f"{path.stem}-{document['kind']}-{document['metadata']['name']}", document


DOCUMENTS = dict(_documents())
CORE = {name: doc for name, doc in DOCUMENTS.items() if "ray.io" not in doc["apiVersion"]}
RAY = {name: doc for name, doc in DOCUMENTS.items() if "ray.io" in doc["apiVersion"]}


def only(kind: str, name: str) -> Document:
    """The document of that kind and name."""
    (found,) = [doc for doc in DOCUMENTS.values() if doc["kind"] == kind and doc["metadata"]["name"] == name]
    return found


def pod_templates(document: Document) -> list[Document]:
    """Of whatever kind the document is."""
    spec = document["spec"]
    if document["kind"] == "Deployment":
        return [spec["template"]]
    if document["kind"] == "RayCluster":
        return [spec["headGroupSpec"]["template"], *(group["template"] for group in spec["workerGroupSpecs"])]
    return []


def all_pods() -> list[Document]:
    """The pods' specs of all documents."""
    return [template["spec"] for doc in DOCUMENTS.values() for template in pod_templates(doc)]


def containers_of(pod: Document) -> list[Document]:
    """Init containers too."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def container(pod: Document, name: str) -> Document:
    """The pod's container of that name."""
    (found,) = [one for one in containers_of(pod) if one["name"] == name]
    return found


def mounts(one: Document) -> dict[str, str]:
    """Volume by path."""
    return {mount["mountPath"]: mount["name"] for mount in one.get("volumeMounts", [])}
