"""Calls beside generation: tokens, models, probes, and browsers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.router.doors import HELLO, MAX_MODEL_LEN, MODEL, Doors, open_doors
from tests.support.http_calls import post
from tests.support.scripted_dispatcher import ScriptedDispatcher
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE

MESSAGES = [{"role": "user", "content": "hi"}]
ORIGIN = "https://chat.example"


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
async def test_tokenize_a_text(doors: Doors, path: str) -> None:
    body = await post(doors.client, path, {"model": MODEL, "prompt": "aé<|im_end|>"})
    assert body == {"count": 4, "max_model_len": MAX_MODEL_LEN, "tokens": [97, 0xC3, 0xA9, IM_END]}
    body = await post(doors.client, path, {"prompt": "a ", "return_token_strs": True})
    # As the byte alphabet spells them.
    assert body["token_strs"] == ["a", "Ġ"]
    long = await post(doors.client, path, {"prompt": "a" * 5000})
    assert long["count"] == 5000


async def test_tokenize_equals_what_a_chat_becomes(doors: Doors) -> None:
    for values in (
        {},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"truncate_prompt_tokens": 5},
        {"chat_template_kwargs": {"unused": 1}},
    ):
        asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, **values}
        await post(doors.client, "/v1/chat/completions", asked)
        tokens = (await post(doors.client, "/tokenize", asked))["tokens"]
        assert tuple(tokens) == doors.dispatcher.generations[-1].request.prompt_token_ids


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
async def test_detokenize_is_the_way_back(doors: Doors, path: str) -> None:
    text = "héllo <|im_start|>x"
    tokens = (await post(doors.client, "/tokenize", {"prompt": text}))["tokens"]
    assert await post(doors.client, path, {"tokens": tokens}) == {"prompt": text}
    body = {"model": MODEL, "tokens": tokens, "skip_special_tokens": True}
    assert await post(doors.client, path, body) == {"prompt": "héllo x"}
    assert await post(doors.client, path, {"tokens": []}) == {"prompt": ""}
    # Many are read in a thread.
    assert (await post(doors.client, path, {"tokens": [97] * 9000}))["prompt"] == "a" * 9000


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, 400, "prompt"),
        ("/tokenize", {"prompt": ""}, 400, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"prompt": "a", "chat_template": "{{ 1 }}"}, 400, "chat_template"),
        ("/tokenize", {"prompt": "a", "frob": 1}, 400, "frob"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
async def test_refused(doors: Doors, path: str, body: dict[str, Any], status: int, param: str) -> None:
    response = await doors.client.post(path, json=body)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param


async def test_one_model(doors: Doors) -> None:
    (listed,) = (await doors.client.get("/v1/models")).json()["data"]
    assert (await doors.client.get(f"/v1/models/{MODEL}")).json() == listed
    assert listed == {
        "id": MODEL,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "kvrelay",
        "max_model_len": MAX_MODEL_LEN,
    }
    assert (await doors.client.get("/v1/models/other")).status_code == 404


async def test_probes(doors: Doors) -> None:
    for response in (
        await doors.client.get("/health"),
        await doors.client.get("/ping"),
        await doors.client.post("/ping"),
    ):
        assert (response.status_code, response.json()) == (200, {"status": "ok"})
    assert (await doors.client.get("/version")).json()["version"]


async def test_pages_of_other_origins_may_not_call(doors: Doors) -> None:
    response = await doors.client.get("/v1/models", headers={"origin": ORIGIN})
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("origins", [(ORIGIN,), ("*",)])
async def test_pages_of_named_origins_may_call(tmp_path: Path, origins: tuple[str, ...]) -> None:
    dispatcher = ScriptedDispatcher(HELLO)
    async with open_doors(tmp_path, dispatcher, keys=("key",), cors_origins=origins) as doors:
        # The browser's own question carries no key.
        ask = {
            "origin": ORIGIN,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        response = await doors.client.options("/v1/completions", headers=ask)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == origins[0]
        assert "authorization" in response.headers["access-control-allow-headers"]
        # The page can read errors too.
        response = await doors.client.post("/v1/completions", json={}, headers={"origin": ORIGIN})
        assert response.status_code == 401
        assert response.headers["access-control-allow-origin"] == origins[0]
        assert "x-request-id" in response.headers["access-control-expose-headers"]
        other = await doors.client.options(
            "/v1/completions", headers={**ask, "origin": "https://evil.example"}
        )
        assert (other.status_code == 200) == (origins == ("*",))
