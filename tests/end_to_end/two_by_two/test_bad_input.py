"""What no client may ask for, at both doors: each gets its own clear error and costs no worker anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from kvrelay import Client, InvalidRequestError, KvrelayError, ModelNotFoundError
from tests.end_to_end.two_by_two.conftest import MODEL
from tests.support.live_cluster import LiveCluster
from tests.support.live_counts import counts
from tests.support.tiny_tokenizer import VOCAB_SIZE

CONTEXT_TOKENS = 4096
LARGEST_ID = VOCAB_SIZE - 1

# What is asked for, and what the answer must name.
BOTH_DOORS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "empty"),
    ({"prompt": "x" * CONTEXT_TOKENS}, f"context length is {CONTEXT_TOKENS}"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": CONTEXT_TOKENS}, "max_tokens"),
    ({"temperature": -0.5}, "temperature"),
    ({"top_p": 0.0}, "top_p"),
    ({"n": 17}, "n"),
    ({"token_ids": [LARGEST_ID + 1]}, f"0 to {LARGEST_ID}"),
    ({"token_ids": []}, "empty"),
    ({"stop_token_ids": [LARGEST_ID + 1]}, f"0 to {LARGEST_ID}"),
    ({"model": "other"}, "other"),
]


def _steps(cluster: LiveCluster) -> dict[str, int]:
    return {name: stats.prompt_tokens_total for name, stats in counts(cluster).items()}


def _post(cluster: LiveCluster, path: str = "/v1/completions", **request: Any) -> httpx.Response:
    return httpx.post(f"{cluster.state.http_url}{path}", timeout=60.0, **request)


@pytest.fixture
def unmoved(cluster: LiveCluster) -> Callable[[], None]:
    """To be called at the end: no worker has seen a request since the beginning."""
    before = _steps(cluster)

    def check() -> None:
        assert _steps(cluster) == before

    return check


def test_over_http(cluster: LiveCluster, unmoved: Callable[[], None]) -> None:
    requests = [*BOTH_DOORS, ({"max_tokens": -1}, "max_tokens"), ({"frobnicate": 1}, "frobnicate")]
    for arguments, says in requests:
        body = {"model": MODEL, "prompt": "hi", **arguments}
        if "token_ids" in body:
            body["prompt"] = body.pop("token_ids")
        answer = _post(cluster, json=body)
        assert answer.status_code == (404 if arguments == {"model": "other"} else 400), (
            arguments,
            answer.text,
        )
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert says in answer.json()["error"]["message"], arguments
    unmoved()


def test_bodies_that_are_no_requests(cluster: LiveCluster, unmoved: Callable[[], None]) -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        malformed = _post(cluster, path, content=b'{"model": ')
        assert (malformed.status_code, malformed.json()["error"]["code"]) == (400, "invalid_json")
        invalid = _post(cluster, path, content=b'{"model": "deep", "prompt": "\xff\xfe"}')
        assert (invalid.status_code, invalid.json()["error"]["code"]) == (400, "invalid_json")
        large = _post(cluster, path, content=b" " * (10 << 20))
        assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    unmoved()


def test_over_grpc(cluster: LiveCluster, client: Client, unmoved: Callable[[], None]) -> None:
    for arguments, says in BOTH_DOORS:
        merged = dict(arguments) if "token_ids" in arguments else {"prompt": "hi", **arguments}
        with pytest.raises(KvrelayError, match=says) as caught:
            client.generate(**merged)
        kind = ModelNotFoundError if arguments == {"model": "other"} else InvalidRequestError
        assert type(caught.value) is kind, arguments
    with pytest.raises(InvalidRequestError, match="larger than max"):
        client.generate("x" * (10 << 20))
    unmoved()
