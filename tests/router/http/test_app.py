"""Operations, keys, metrics and the OpenAPI page."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.auth import OPEN_PATHS
from tests.router.doors import HELLO, MAX_MODEL_LEN, MODEL, Doors, open_doors
from tests.support.scripted_dispatcher import ScriptedDispatcher

TEXT = "/v1/completions"
BODY = {"model": MODEL, "prompt": "hi"}


async def test_health_is_about_the_process_and_ready_about_requests(doors: Doors) -> None:
    assert (await doors.client.get("/health")).status_code == 200
    assert (await doors.client.get("/ready")).status_code == 200
    doors.dispatcher.ready = False
    assert (await doors.client.get("/health")).status_code == 200
    response = await doors.client.get("/ready")
    assert (response.status_code, response.json()["status"]) == (503, "no live workers for every role")


async def test_while_draining_new_requests_are_sent_away(doors: Doors) -> None:
    doors.serving.draining = True
    response = await doors.client.post(TEXT, json=BODY)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
    assert response.headers["retry-after"] == "1"
    assert (await doors.client.get("/ready")).json()["status"] == "shutting down"
    assert (await doors.client.get("/health")).status_code == 200


async def test_models(doors: Doors) -> None:
    model = {
        "id": MODEL,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "kvrelay",
        "max_model_len": MAX_MODEL_LEN,
    }
    assert (await doors.client.get("/v1/models")).json() == {"object": "list", "data": [model]}
    assert (await doors.client.get(f"/v1/models/{MODEL}")).json() == model
    response = await doors.client.get("/v1/models/other")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_version(doors: Doors) -> None:
    assert (await doors.client.get("/version")).json()["version"]


async def test_metrics(doors: Doors) -> None:
    await doors.client.post(TEXT, json=BODY)
    await doors.client.post(TEXT, json={})
    await doors.client.get("/some/path/that/a/client/made/up")
    text = (await doors.client.get("/metrics")).text
    assert f'kvrelay_router_calls_total{{call="{TEXT}",door="http",status="200"}} 1.0' in text
    assert f'kvrelay_router_calls_total{{call="{TEXT}",door="http",status="400"}} 1.0' in text
    assert 'kvrelay_router_calls_total{call="other",door="http",status="404"} 1.0' in text
    assert "made/up" not in text
    assert 'kvrelay_router_answers_total{reason="stop"} 1.0' in text


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        ("Bearer key-on", 401),
        ("Bearer key-one2", 401),
        ("Basic key-one", 401),
        ("key-one", 401),
        ("Bearer kéy", 401),
        ("Bearer key-one", 200),
        ("bearer key-two", 200),
        ("Bearer clé", 200),
    ],
)
async def test_keys(tmp_path: Path, header: str | None, status: int) -> None:
    keys = ("key-one", "key-two", "clé")
    async with open_doors(tmp_path, ScriptedDispatcher(HELLO), keys=keys) as doors:
        headers = {} if header is None else {"authorization": header.encode()}
        response = await doors.client.post(TEXT, json=BODY, headers=headers)
        assert response.status_code == status
        if status == 401:
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
            assert doors.dispatcher.generations == []
        for path in OPEN_PATHS:
            assert (await doors.client.get(path, headers=headers)).status_code == 200
        for path in ("/v1/models", "/version", "/v1/nothing", "/health/", "//health"):
            assert (await doors.client.get(path)).status_code == 401


async def test_the_openapi_page_describes_the_bodies(doors: Doors) -> None:
    schema = (await doors.client.get("/openapi.json")).json()
    body = schema["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    name = body["schema"]["$ref"].rpartition("/")[2]
    properties = schema["components"]["schemas"][name]["properties"]
    for field in ("messages", "temperature", "max_completion_tokens", "stop", "stream", "timeout"):
        assert field in properties
    temperature = properties["temperature"]
    assert temperature["description"]
    number = next(option for option in temperature["anyOf"] if option["type"] == "number")
    assert (number["minimum"], number["maximum"]) == (0, 2)
    answers = schema["paths"]["/v1/completions"]["post"]["responses"]
    assert set(answers) == {"200", "400", "401", "404", "408", "413", "429", "500", "503", "504"}
    refs = _references(schema)
    assert refs
    assert all(ref.rpartition("/")[2] in schema["components"]["schemas"] for ref in refs)
    assert (await doors.client.get("/docs")).status_code == 200


def _references(node: object) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(_references(value) for value in node.values()))
    if isinstance(node, list):
        return set().union(*(_references(value) for value in node))
    return set()
