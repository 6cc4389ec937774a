"""Turns a CustomResourceDefinition's openAPIV3Schema into strict JSON Schema.

`raycluster-v1.7.0.schema.json` is the schema of KubeRay v1.7.0's RayCluster v1 (ray-project/kuberay,
ray-operator/config/crd/bases, Apache-2.0) without its descriptions.
"""

from __future__ import annotations

import json
from pathlib import Path

Schema = dict[str, object]


def load_strict(path: Path) -> Schema:
    """The schema of a file, with unknown fields refused wherever it lists its properties."""
    strict = _translate(json.loads(path.read_text()))
    assert isinstance(strict, dict)
    return strict


def _translate(node: object) -> object:
    if isinstance(node, list):
        return [_translate(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    translated = {
        key: _translate(value) for key, value in node.items() if not key.startswith("x-kubernetes-")
    }
    open_ended = node.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in node
    if isinstance(node.get("properties"), dict) and node.get("type") == "object" and not open_ended:
        translated["additionalProperties"] = False
    return translated
