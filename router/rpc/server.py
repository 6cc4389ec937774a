"""The gRPC servers: the clients' one (inference, health, reflection) and the supervisor's one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kvrelay.v1 import inference_pb2, router_pb2
from kvrelay.v1.inference_pb2_grpc import InferenceServicer, add_InferenceServicer_to_server
from kvrelay.v1.router_pb2_grpc import RouterAdminServicer, add_RouterAdminServicer_to_server
from router.addresses import PortInUseError, join_address
from router.auth import MESSAGE, OPEN_SERVICES, ApiKeys
from router.rpc.parsing import ParseInterceptor

INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
ADMIN = router_pb2.DESCRIPTOR.services_by_name["RouterAdmin"].full_name
# A worker table of thousands of workers.
_MAX_ADMIN_BYTES = 16 << 20
# gRPC's own limit of five minutes would end the connection of a client that asks more often.
_MIN_PING_INTERVAL_MS = 500


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg] # generic in the stubs alone
    """Refuses calls without a valid key, before their handler sees anything."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys
        self._refuse = grpc.unary_unary_rpc_method_handler(_refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Passes the call on or gives it a handler that refuses."""
        service = handler_call_details.method.rpartition("/")[0].lstrip("/")
        metadata = dict(handler_call_details.invocation_metadata or ())
        authorization = metadata.get("authorization", "")
        value = authorization if isinstance(authorization, bytes) else authorization.encode()
        if service in OPEN_SERVICES or self._keys.accepts(value):
            return await continuation(handler_call_details)
        return self._refuse


async def _refuse(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, MESSAGE)
    return b""


class RpcServer:
    """One gRPC server with health and reflection.

    Attributes:
        port: the port it listens on once made.

    Raises PortInUseError.
    """

    def __init__(self, host: str, port: int, service: str, keys: ApiKeys, max_message_bytes: int) -> None:
        self.service = service
        self.server = grpc.aio.server(
            interceptors=[KeyInterceptor(keys), ParseInterceptor(service)],
            options=[
                # Otherwise a second router would share the port, and each get half of the calls.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", max_message_bytes),
                # Clients ask whether their router still lives while an answer takes its time.
                ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
            ],
        )
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined] # missing in the stubs
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        names = (service, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.server)
        try:
            self.port = self.server.add_insecure_port(join_address(host, port))
        except RuntimeError as error:
            raise PortInUseError(f"cannot listen on {join_address(host, port)}: {error}") from error

    async def start(self) -> None:
        """Begins to serve. Health: the server as a whole is SERVING now, its service from `set_ready` on."""
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(False)
        await self.server.start()

    async def set_ready(self, ready: bool) -> None:
        """What `grpc.health.v1` says of the service."""
        states = health_pb2.HealthCheckResponse
        await self._health.set(self.service, states.SERVING if ready else states.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, says so to watchers of health, and ends running calls after `grace_s`."""
        await self._health.enter_graceful_shutdown()
        await self.server.stop(grace_s)


def inference_server(
    host: str, port: int, servicer: InferenceServicer, keys: ApiKeys, max_message_bytes: int
) -> RpcServer:
    """The clients' server, not started."""
    server = RpcServer(host, port, INFERENCE, keys, max_message_bytes)
    add_InferenceServicer_to_server(servicer, server.server)
    return server


def admin_server(host: str, port: int, servicer: RouterAdminServicer) -> RpcServer:
    """The supervisor's server, not started. It has no keys: clients must not reach its port."""
    server = RpcServer(host, port, ADMIN, ApiKeys(()), _MAX_ADMIN_BYTES)
    add_RouterAdminServicer_to_server(servicer, server.server)
    return server
