"""Messages that cannot be parsed are the client's mistake, and are answered as one.

gRPC itself would end such a call with UNKNOWN or INTERNAL, as if the server had failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

# Generic in the stubs alone.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class _Unparsed:
    """Stands for a message that is none."""


def _lenient(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parse_or_mark(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return _Unparsed()

    return parse_or_mark


class ParseInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg] # generic in the stubs alone
    """Ends calls of one service whose one request message cannot be parsed with INVALID_ARGUMENT.

    Args:
        service: full name; its handlers are coroutines, which write their answers to the context or return
            them.
    """

    def __init__(self, service: str) -> None:
        self._service = service

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wraps handlers of calls with one request message."""
        handler = await continuation(handler_call_details)
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if handler is None or service != self._service or handler.request_streaming:
            return handler
        # The stubs know only handlers of the synchronous server.
        handle: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary

        async def refuse(context: grpc.aio.ServicerContext[Any, Any]) -> None:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"The message is no {method}Request.",
            )

        async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            if isinstance(request, _Unparsed):
                await refuse(context)
            return await handle(request, context)

        make: Any = (
            grpc.unary_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        parse = handler.request_deserializer
        made: Handler = make(answer, parse and _lenient(parse), handler.response_serializer)
        return made
