from __future__ import annotations

import pickle

import grpc
import pytest

import kvrelay
from kvrelay import AsyncClient, Client, KvrelayError, OverloadedError
from tests.client.scripted_server import Server

CLASSES = {
    grpc.StatusCode.INVALID_ARGUMENT: kvrelay.InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: kvrelay.ModelNotFoundError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: kvrelay.OverloadedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: kvrelay.DeadlineExceededError,
    grpc.StatusCode.UNAVAILABLE: kvrelay.UnavailableError,
    grpc.StatusCode.UNAUTHENTICATED: kvrelay.AuthenticationError,
    grpc.StatusCode.PERMISSION_DENIED: kvrelay.AuthenticationError,
    grpc.StatusCode.CANCELLED: kvrelay.RequestCancelledError,
    grpc.StatusCode.INTERNAL: kvrelay.ServerError,
    grpc.StatusCode.UNKNOWN: kvrelay.ServerError,
    grpc.StatusCode.UNIMPLEMENTED: kvrelay.ServerError,
}


@pytest.mark.parametrize("code", CLASSES, ids=lambda code: code.name)
async def test_each_status_has_its_class_and_the_servers_message(
    code: grpc.StatusCode, client: Client, async_client: AsyncClient, server: Server
) -> None:
    server.refuse = (code, "because: max_tokens")
    failures: list[KvrelayError] = []
    for call in (client.models, lambda: client.generate("p"), lambda: client.tokenize("p")):
        with pytest.raises(CLASSES[code], match="because: max_tokens") as caught:
            call()
        failures.append(caught.value)
    for asynchronous in (async_client.models(), async_client.generate("p"), async_client.tokenize("p")):
        with pytest.raises(CLASSES[code], match="because: max_tokens") as caught_async:
            await asynchronous
        failures.append(caught_async.value)
    for failure in failures:
        assert failure.code == code.name
        assert isinstance(failure.__cause__, grpc.RpcError)


@pytest.mark.parametrize(("sent", "seconds"), [("1.5", 1.5), ("30", 30.0), ("soon", None), (None, None)])
async def test_overload_says_when_to_come_back(
    client: Client, async_client: AsyncClient, server: Server, sent: str | None, seconds: float | None
) -> None:
    server.refuse = (grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full")
    server.retry_after = sent
    with pytest.raises(OverloadedError, match="queue full") as caught:
        client.generate("p")
    assert caught.value.retry_after == seconds
    with pytest.raises(OverloadedError, match="queue full") as caught:
        await async_client.generate("p")
    assert caught.value.retry_after == seconds


def test_a_request_that_is_too_large_is_not_taken_for_overload(client: Client) -> None:
    with pytest.raises(kvrelay.InvalidRequestError, match="larger than max"):
        client.generate("x" * (5 << 20))


def test_errors_can_be_sent_between_processes() -> None:
    error = pickle.loads(pickle.dumps(OverloadedError("full", "RESOURCE_EXHAUSTED", 2.0)))
    assert (str(error), error.code, error.retry_after) == ("full", "RESOURCE_EXHAUSTED", 2.0)


def test_all_errors_have_one_base() -> None:
    errors = [value for name, value in vars(kvrelay).items() if name.endswith("Error")]
    assert len(errors) == 9
    assert all(issubclass(error, KvrelayError) for error in errors)
