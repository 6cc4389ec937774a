"""The OpenAPI document leaves nothing out: each field of each body says what it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from router.auth import ApiKeys
from router.door_metrics import DoorMetrics
from router.http.app import create_app
from router.http.openapi import RouterApi
from router.serving import Serving
from tests.router.doors import HELLO, served_model
from tests.support.scripted_dispatcher import ScriptedDispatcher

ASKED = re.compile(r"^\S.*\. Range: \S.*\. Default: \S.*\. Unit: \S.*\.$", re.DOTALL)
TOLD = re.compile(r"^\S.*\. Range: \S.*\. Unit: \S.*\.$", re.DOTALL)
METHODS = {"get", "post", "put", "delete", "patch"}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("model")
    serving = Serving(served_model(folder), ScriptedDispatcher(HELLO))
    app = create_app(serving, DoorMetrics(CollectorRegistry()), ApiKeys(()), 1 << 20, lambda: "test")
    assert isinstance(app, RouterApi)
    return app.openapi()


def calls(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            assert method in METHODS
            yield f"{method} {path}", call


def fields_of(document: dict[str, Any], node: Any, where: str, seen: set[str]) -> Iterator[tuple[str, Any]]:
    """All properties that can be reached from a schema, each with its place."""
    if isinstance(node, list):
        for item in node:
            yield from fields_of(document, item, where, seen)
    if not isinstance(node, dict):
        return
    name = str(node.get("$ref", "")).rpartition("/")[2]
    if name and name not in seen:
        seen.add(name)
        yield from fields_of(document, document["components"]["schemas"][name], name, seen)
    for key, inner in node.get("properties", {}).items():
        yield f"{where}.{key}", inner
    for value in node.values():
        yield from fields_of(document, value, where, seen)


def test_every_field_of_every_request(document: dict[str, Any]) -> None:
    found = [
        (where, field)
        for name, call in calls(document)
        for where, field in fields_of(document, call.get("requestBody", {}), name, set())
    ]
    names = {where for where, _ in found}
    assert {"ChatCompletionRequest.messages", "ChatMessage.role", "DetokenizeRequest.tokens"} <= names
    assert [where for where, field in found if not ASKED.match(field.get("description", ""))] == []


def test_every_field_of_every_answer(document: dict[str, Any]) -> None:
    found = [
        (where, field)
        for name, call in calls(document)
        for where, field in fields_of(document, call["responses"], name, set())
    ]
    names = {where for where, _ in found}
    assert {"Usage.prompt_tokens", "ErrorDetail.code", "ChatCompletionChunk.choices", "Model.id"} <= names
    assert [where for where, field in found if not TOLD.match(field.get("description", ""))] == []


def test_every_parameter_and_call_is_described(document: dict[str, Any]) -> None:
    for name, call in calls(document):
        assert call["summary"], name
        for answer in call["responses"].values():
            assert answer["description"], name
        for parameter in call.get("parameters", ()):
            assert ASKED.match(parameter.get("description", "")), f"{name}: {parameter['name']}"


def test_errors_and_streams_are_described(document: dict[str, Any]) -> None:
    for path, chunk in (("/v1/chat/completions", "ChatCompletionChunk"), ("/v1/completions", "Completion")):
        answers = document["paths"][path]["post"]["responses"]
        stream = answers["200"]["content"]["text/event-stream"]["schema"]["$ref"]
        assert stream.endswith(f"/{chunk}")
        assert "[DONE]" in answers["200"]["description"]
        for status in ("400", "401", "404", "408", "413", "429", "500", "503", "504"):
            assert answers[status]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorBody")


def test_nothing_is_left_over(document: dict[str, Any]) -> None:
    """Every schema is used, and what the framework would answer by itself is not there."""
    seen: set[str] = set()
    for name, call in calls(document):
        assert "422" not in call["responses"], name
        for _ in fields_of(document, call, name, seen):
            pass
    assert seen == set(document["components"]["schemas"])
