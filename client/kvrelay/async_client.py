"""The asynchronous client. The same surface as `client.py`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Unpack

import grpc
import grpc.aio

from kvrelay._chat import Messages
from kvrelay._endpoints import Attempts, Endpoints, checked_endpoints
from kvrelay._stream_state import StreamState
from kvrelay._wire import (
    call_metadata,
    channel_options,
    make_stub,
    model_of,
    models,
    tokenization,
    translated,
)
from kvrelay.options import (
    GenerateOptions,
    PromptOptions,
    detokenize_request,
    generate_request,
    tokenize_request,
)
from kvrelay.types import Chunk, Generation, Model, Tokenization
from kvrelay.v1 import inference_pb2


class AsyncStream(AsyncIterator[Chunk]):
    """An answer that arrives piece by piece: `async for` over it, then `await result()`.

    The request is sent at once. Leaving an `async with` block, `aclose()`, `cancel()`, dropping the stream
    and cancelling the task that reads end it on the server too; what reads on gets RequestCancelledError.
    """

    def __init__(self, start: Callable[[Attempts], Any], attempts: Attempts) -> None:
        self._start = start
        self._state = StreamState(attempts)
        self._cancelled = asyncio.Event()
        self._begin()

    def _begin(self) -> None:
        self._call = self._start(self._state.attempts)
        self._responses = aiter(self._call)

    def __del__(self) -> None:
        # gRPC's own call is in a cycle with its iterator and would live until the next garbage collection.
        # Absent where the call could not begin; the loop may be closed by now, and the call with it.
        with suppress(AttributeError, RuntimeError):
            self._call.cancel()

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Chunk:
        while True:
            if self._state.result is not None:
                raise StopAsyncIteration
            if self._cancelled.is_set():
                raise self._state.cancelled()
            try:
                return self._state.received(await anext(self._responses))
            except StopAsyncIteration:
                self._state.ended()
            except grpc.RpcError as error:
                await self._restart(self._state.failed(error))
            except asyncio.CancelledError:
                task = asyncio.current_task()
                # gRPC raises the same for a cancelled call as asyncio does for a cancelled task.
                if self._cancelled.is_set() and task is not None and not task.cancelling():
                    raise self._state.cancelled() from None
                self.cancel()
                raise

    async def _restart(self, pause_s: float) -> None:
        if not self._cancelled.is_set():
            try:
                await asyncio.wait_for(self._cancelled.wait(), pause_s)
            except TimeoutError:
                self._begin()

    async def result(self) -> Generation:
        """Reads what is left and returns the whole. Raises what the iteration would raise."""
        async for _ in self:
            pass
        result = self._state.result
        assert result is not None, "the iteration ends with a result or an error"
        return result

    def cancel(self) -> None:
        """Ends the request. After its end: nothing happens."""
        self._cancelled.set()
        self._call.cancel()

    async def aclose(self) -> None:
        """The same as `cancel()`."""
        self.cancel()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncClient:
    """A connection to a cluster's routers, for one event loop. Close it when done.

    Arguments, retries and errors are those of `Client`.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        api_key: str | None = None,
        timeout: float | None = None,
        retries: int = 3,
        credentials: grpc.ChannelCredentials | None = None,
        keepalive: float = 20.0,
    ) -> None:
        self._endpoints = Endpoints(checked_endpoints(endpoints))
        self._metadata = call_metadata(api_key)
        self._timeout = timeout
        self._retries = retries
        self._credentials = credentials
        self._options = channel_options(keepalive)
        # Made when first used: a channel belongs to the loop that runs then.
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._stubs: dict[int, Any] = {}

    async def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Generates from exactly one of prompt, messages and token_ids; returns when it is complete."""
        async with self.stream(prompt, messages=messages, token_ids=token_ids, **options) as stream:
            return await stream.result()

    async def chat(self, messages: Messages, **options: Unpack[GenerateOptions]) -> Generation:
        """Generates the next message of a chat. `stream(messages=...)` does it piece by piece."""
        return await self.generate(messages=messages, **options)

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncStream:
        """Generates from exactly one of prompt, messages and token_ids, piece by piece. Not awaited."""
        request = generate_request(prompt, messages, token_ids, options)

        def start(attempts: Attempts) -> Any:
            generate = self._stub(attempts.endpoint).Generate
            return generate(request, timeout=attempts.remaining_s, metadata=self._metadata)

        return AsyncStream(start, self._attempts(options.get("timeout")))

    async def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        model: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the same name as everywhere in this package
        return_token_strs: bool = False,
        **options: Unpack[PromptOptions],
    ) -> Tokenization:
        """Token ids of a prompt or chat, exactly as `generate` would see them."""
        request = tokenize_request(prompt, messages, model, return_token_strs, options)
        return tokenization(await self._unary("Tokenize", request, timeout))

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        model: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the same name as everywhere in this package
    ) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD."""
        request = detokenize_request(token_ids, skip_special_tokens, model)
        response: inference_pb2.DetokenizeResponse = await self._unary("Detokenize", request, timeout)
        return response.text

    async def model(
        self,
        name: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the same name as everywhere in this package
    ) -> Model:
        """One served model. Raises ModelNotFoundError."""
        return model_of(await self._unary("GetModel", inference_pb2.GetModelRequest(id=name), timeout))

    async def models(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the same name as everywhere in this package
    ) -> tuple[Model, ...]:
        """The models that are served."""
        return models(await self._unary("ListModels", inference_pb2.ListModelsRequest(), timeout))

    async def close(self) -> None:
        """Ends all requests and closes the connections."""
        for channel in self._channels.values():
            await channel.close(grace=None)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _stub(self, endpoint: int) -> Any:
        if endpoint not in self._stubs:
            address = self._endpoints.addresses[endpoint]
            channel = (
                grpc.aio.insecure_channel(address, self._options)
                if self._credentials is None
                else grpc.aio.secure_channel(address, self._credentials, self._options)
            )
            self._channels[endpoint] = channel
            self._stubs[endpoint] = make_stub(channel)
        return self._stubs[endpoint]

    def _attempts(self, timeout: float | None) -> Attempts:
        return Attempts(self._endpoints, self._retries, self._timeout if timeout is None else timeout)

    async def _unary(self, method: str, request: object, timeout_s: float | None) -> Any:
        attempts = self._attempts(timeout_s)
        while True:
            call = getattr(self._stub(attempts.endpoint), method)
            try:
                response = await call(request, timeout=attempts.remaining_s, metadata=self._metadata)
            except grpc.RpcError as error:
                await asyncio.sleep(attempts.failed(translated(error)))
            else:
                attempts.answered()
                return response
