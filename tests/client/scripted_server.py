"""A gRPC server that answers as a test tells it. Alone: `python -m tests.client.scripted_server`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from kvrelay.v1 import common_pb2, inference_pb2
from kvrelay.v1.inference_pb2_grpc import InferenceServicer, add_InferenceServicer_to_server

Request = inference_pb2.GenerateRequest
Response = inference_pb2.GenerateResponse
Script = Callable[[Request, grpc.ServicerContext], Iterable[Response]]


def piece(text: str, choice: int = 0, **values: Any) -> Response:
    """A message in the middle of a choice: one token for each character."""
    return Response(choice=choice, text=text, token_ids=[ord(letter) for letter in text], **values)


def last(text: str = "", choice: int = 0, prompt_tokens: int = 3, completion_tokens: int = 5) -> Response:
    """The last message of a choice and of the stream."""
    return piece(
        text,
        choice,
        finish_reason=common_pb2.FINISH_REASON_STOP,
        usage=common_pb2.Usage(
            prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cached_tokens=2
        ),
        timeline=common_pb2.Timeline(ttft_s=0.25, attempts=1, decode_worker="decode-0"),
        request_id="request-1",
    )


def answer(_request: Request, _context: grpc.ServicerContext) -> Iterator[Response]:
    """Says hello."""
    yield piece("Hel")
    yield piece("lo")
    yield last()


@dataclass
class Server(InferenceServicer):
    """What it saw, and what it does next."""

    script: Script = answer
    refuse: tuple[grpc.StatusCode, str] | None = None
    retry_after: str | None = None
    requests: list[object] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    # One for each request that arrived, and for each whose context ended, for whatever reason.
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    port: int = 0

    @property
    def endpoint(self) -> str:
        """Address for a client."""
        return f"127.0.0.1:{self.port}"

    def _note(self, request: object, context: grpc.ServicerContext) -> None:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        context.add_callback(self.ended.release)
        self.begun.release()
        if self.refuse is not None:
            if self.retry_after is not None:
                context.set_trailing_metadata((("retry-after", self.retry_after),))
            context.abort(*self.refuse)

    def Generate(self, request: Request, context: grpc.ServicerContext) -> Iterator[Response]:  # noqa: N802
        """Runs the script."""
        self._note(request, context)
        yield from self.script(request, context)

    def Tokenize(  # noqa: N802
        self, request: inference_pb2.TokenizeRequest, context: grpc.ServicerContext
    ) -> inference_pb2.TokenizeResponse:
        """One token for each character of the prompt or of the chat."""
        self._note(request, context)
        text = request.prompt + "".join(message.content for message in request.chat.messages)
        ids = [ord(letter) for letter in text]
        return inference_pb2.TokenizeResponse(token_ids=ids, max_model_len=4096)

    def Detokenize(  # noqa: N802
        self, request: inference_pb2.DetokenizeRequest, context: grpc.ServicerContext
    ) -> inference_pb2.DetokenizeResponse:
        """The way back."""
        self._note(request, context)
        return inference_pb2.DetokenizeResponse(text="".join(map(chr, request.token_ids)))

    def GetModel(  # noqa: N802
        self, request: inference_pb2.GetModelRequest, context: grpc.ServicerContext
    ) -> inference_pb2.Model:
        """Any model."""
        self._note(request, context)
        return inference_pb2.Model(id=request.id, max_model_len=4096, created_unix_s=1)

    def ListModels(  # noqa: N802
        self, request: inference_pb2.ListModelsRequest, context: grpc.ServicerContext
    ) -> inference_pb2.ListModelsResponse:
        """One model."""
        self._note(request, context)
        model = inference_pb2.Model(id="demo", max_model_len=4096, created_unix_s=1)
        return inference_pb2.ListModelsResponse(models=[model])


@contextmanager
def serving(server: Server, port: int = 0) -> Iterator[Server]:
    """Serves on a port of the loopback interface."""
    grpc_server = grpc.server(ThreadPoolExecutor(8))
    # The generated function has no types.
    add: Callable[[InferenceServicer, grpc.Server], None] = add_InferenceServicer_to_server
    add(server, grpc_server)
    server.port = grpc_server.add_insecure_port(f"127.0.0.1:{port}")
    grpc_server.start()
    try:
        yield server
    finally:
        grpc_server.stop(grace=None).wait()


def stall(request: Request, context: grpc.ServicerContext) -> Iterator[Response]:
    """Answers nothing for the prompt "wait", one piece for any other, and then hangs until the call ends."""
    ended = threading.Event()
    context.add_callback(ended.set)
    if request.prompt != "wait":
        yield piece("Hel")
    ended.wait()


if __name__ == "__main__":
    with serving(Server(stall)) as alone:
        print(alone.port, flush=True)
        sys.stdin.read()
