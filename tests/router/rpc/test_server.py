"""Keys, health, reflection and ports."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from kvrelay import AsyncClient
from kvrelay.v1 import inference_pb2
from kvrelay.v1.inference_pb2_grpc import InferenceServicer, InferenceStub
from router.addresses import PortInUseError
from router.auth import ApiKeys
from router.rpc.server import INFERENCE, inference_server
from tests.router.doors import HELLO, Doors, open_doors
from tests.support.scripted_dispatcher import Script, ScriptedDispatcher, says

Serving = health_pb2.HealthCheckResponse


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


async def services(channel: grpc.aio.Channel, metadata: Any = None) -> list[str]:
    requests = [reflection_pb2.ServerReflectionRequest(list_services="")]
    call = ServerReflectionStub(channel).ServerReflectionInfo(iter(requests), metadata=metadata)
    return [service.name async for answer in call for service in answer.list_services_response.service]


async def test_health_follows_readiness(doors: Doors) -> None:
    stub = HealthStub(doors.channel)
    request = health_pb2.HealthCheckRequest(service=INFERENCE)
    watch = stub.Watch(request)
    assert (await watch.read()).status == Serving.SERVING
    await doors.rpc.set_ready(False)
    assert (await watch.read()).status == Serving.NOT_SERVING
    assert (await stub.Check(request)).status == Serving.NOT_SERVING
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == Serving.SERVING
    watch.cancel()


async def test_reflection(doors: Doors) -> None:
    assert INFERENCE in await services(doors.channel)


@pytest.mark.parametrize("metadata", [None, bearer("wrong"), (("authorization", "sk-1"),)])
async def test_keys(tmp_path: Path, metadata: Any) -> None:
    async with open_doors(tmp_path, ScriptedDispatcher(HELLO), keys=("sk-1",)) as doors:
        stub: Any = InferenceStub(doors.channel)  # type: ignore[no-untyped-call]
        request = inference_pb2.GenerateRequest(prompt="a")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(request, metadata=metadata).read()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListModels(inference_pb2.ListModelsRequest(), metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await services(doors.channel, metadata)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert doors.dispatcher.generations == []
        # Probes have no key.
        assert (await HealthStub(doors.channel).Check(health_pb2.HealthCheckRequest())).status
        assert await stub.Generate(request, metadata=bearer("sk-1")).read()
        assert INFERENCE in await services(doors.channel, bearer("sk-1"))


async def test_a_port_in_use_is_named(doors: Doors) -> None:
    port = int(doors.grpc_address.rpartition(":")[2])
    with pytest.raises(PortInUseError, match=f"127.0.0.1:{port}"):
        inference_server("127.0.0.1", port, InferenceServicer(), ApiKeys(()), 1024)


async def test_a_client_may_ask_often_whether_the_router_lives(tmp_path: Path) -> None:
    """Pings while an answer takes its time do not end the connection, as gRPC's own limit would."""
    gate = asyncio.Semaphore(1)
    dispatcher = ScriptedDispatcher(Script(says("ab", end=None), gate=gate))
    async with (
        open_doors(tmp_path, dispatcher) as doors,
        AsyncClient(doors.grpc_address, keepalive=1) as client,
    ):
        stream = client.stream("hi")
        assert (await anext(stream)).text == "a"
        # A connection is ended at the third ping that comes too early.
        await asyncio.sleep(4.5)
        gate.release()
        assert (await stream.result()).text == "ab"
