"""The synchronous client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Unpack

import grpc

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


class Stream(Iterator[Chunk]):
    """An answer that arrives piece by piece: iterate over it, then ask for `result()`.

    The request is sent at once. Leaving a `with` block, `close()` and `cancel()` end it on the server too;
    after that the iteration raises RequestCancelledError. `cancel()` may be called from any thread.
    """

    def __init__(self, start: Callable[[Attempts], Any], attempts: Attempts) -> None:
        self._start = start
        self._state = StreamState(attempts)
        self._cancelled = threading.Event()
        self._call = start(attempts)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Chunk:
        while True:
            if self._state.result is not None:
                raise StopIteration
            if self._cancelled.is_set():
                raise self._state.cancelled()
            try:
                return self._state.received(next(self._call))
            except StopIteration:
                self._state.ended()
            except grpc.RpcError as error:
                if self._cancelled.is_set():
                    raise self._state.cancelled() from error
                self._restart(self._state.failed(error))
            except BaseException:  # an interrupt of the waiting thread: nobody will read the rest
                self._call.cancel()
                raise

    def _restart(self, pause_s: float) -> None:
        if self._cancelled.wait(pause_s):
            return
        self._call = self._start(self._state.attempts)
        if self._cancelled.is_set():  # cancel() saw the former call only
            self._call.cancel()

    def result(self) -> Generation:
        """Reads what is left and returns the whole. Raises what the iteration would raise."""
        for _ in self:
            pass
        result = self._state.result
        assert result is not None, "the iteration ends with a result or an error"
        return result

    def cancel(self) -> None:
        """Ends the request. After its end: nothing happens."""
        self._cancelled.set()
        self._call.cancel()

    def close(self) -> None:
        """The same as `cancel()`."""
        self.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client:
    """A connection to a cluster's routers. May be used by several threads; close it when done.

    All methods raise errors of `kvrelay.errors`. A request that no endpoint could take is tried again, also
    on the other endpoints, until the first piece of the answer has come; never after.

    Args:
        endpoints: `host:port` of a router's gRPC door, or several.
        api_key: sent as a bearer token.
        timeout: seconds for each request that names none itself. Default: no limit.
        retries: tries after the first; each endpoint is tried once whatever this says.
        credentials: for TLS, as gRPC makes them: `grpc.ssl_channel_credentials()`.
        keepalive: seconds of silence after which a router is asked whether it still lives, at least 1; one
            that does not answer for as long is unavailable.

    Raises:
        ValueError: an endpoint is not of the form host:port, or keepalive is too short.
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
        options = channel_options(keepalive)
        self._channels = [
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
            for address in self._endpoints.addresses
        ]
        self._stubs = [make_stub(channel) for channel in self._channels]

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Generates from exactly one of prompt, messages and token_ids; returns when it is complete."""
        with self.stream(prompt, messages=messages, token_ids=token_ids, **options) as stream:
            return stream.result()

    def chat(self, messages: Messages, **options: Unpack[GenerateOptions]) -> Generation:
        """Generates the next message of a chat. `stream(messages=...)` does it piece by piece."""
        return self.generate(messages=messages, **options)

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream:
        """Generates from exactly one of prompt, messages and token_ids, piece by piece."""
        request = generate_request(prompt, messages, token_ids, options)

        def start(attempts: Attempts) -> Any:
            generate = self._stubs[attempts.endpoint].Generate
            return generate(request, timeout=attempts.remaining_s, metadata=self._metadata)

        return Stream(start, self._attempts(options.get("timeout")))

    def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        model: str | None = None,
        timeout: float | None = None,
        return_token_strs: bool = False,
        **options: Unpack[PromptOptions],
    ) -> Tokenization:
        """Token ids of a prompt or chat, exactly as `generate` would see them."""
        request = tokenize_request(prompt, messages, model, return_token_strs, options)
        return tokenization(self._unary("Tokenize", request, timeout))

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        model: str | None = None,
        timeout: float | None = None,
    ) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD."""
        request = detokenize_request(token_ids, skip_special_tokens, model)
        response: inference_pb2.DetokenizeResponse = self._unary("Detokenize", request, timeout)
        return response.text

    def model(
        self,
        name: str,
        *,
        timeout: float | None = None,
    ) -> Model:
        """One served model. Raises ModelNotFoundError."""
        return model_of(self._unary("GetModel", inference_pb2.GetModelRequest(id=name), timeout))

    def models(self, *, timeout: float | None = None) -> tuple[Model, ...]:
        """The models that are served."""
        return models(self._unary("ListModels", inference_pb2.ListModelsRequest(), timeout))

    def close(self) -> None:
        """Ends all requests and closes the connections."""
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _attempts(self, timeout: float | None) -> Attempts:
        return Attempts(self._endpoints, self._retries, self._timeout if timeout is None else timeout)

    def _unary(self, method: str, request: object, timeout: float | None) -> Any:
        attempts = self._attempts(timeout)
        while True:
            call = getattr(self._stubs[attempts.endpoint], method)
            try:
                response = call(request, timeout=attempts.remaining_s, metadata=self._metadata)
            except grpc.RpcError as error:
                time.sleep(attempts.failed(translated(error)))
            else:
                attempts.answered()
                return response
