"""What a stream of chunks knows, synchronous or not. No input or output."""

from __future__ import annotations

import grpc

from kvrelay._assembly import Assembly
from kvrelay._endpoints import Attempts
from kvrelay._wire import translated
from kvrelay.errors import KvrelayError, RequestCancelledError
from kvrelay.types import Chunk, Generation
from kvrelay.v1 import inference_pb2


class StreamState:
    """Where a stream stands: not begun, begun (no retry any more), ended with a result or an error."""

    def __init__(self, attempts: Attempts) -> None:
        self.attempts = attempts
        self._assembly = Assembly()
        self._begun = False
        self._result: Generation | None = None
        self._error: KvrelayError | None = None

    @property
    def result(self) -> Generation | None:
        """Set once the stream has ended well. Raises the error that the stream ended with."""
        if self._error is not None:
            raise self._error
        return self._result

    def received(self, response: inference_pb2.GenerateResponse) -> Chunk:
        """Takes a message."""
        if not self._begun:
            self._begun = True
            self.attempts.answered()
        try:
            return self._assembly.add(response)
        except KvrelayError as error:
            self._error = error
            raise

    def ended(self) -> None:
        """Takes the end of the stream. Raises ServerError where it came too early."""
        try:
            self._result = self._assembly.finish()
        except KvrelayError as error:
            self._error = error
            raise

    def failed(self, error: grpc.RpcError) -> float:
        """Takes a failure: seconds to wait before the next attempt. Raises where there is none."""
        failure = translated(error)
        try:
            if self._begun:
                raise failure
            return self.attempts.failed(failure)
        except KvrelayError as final:
            self._error = final
            raise

    def cancelled(self) -> RequestCancelledError:
        """Takes the user's own cancellation; returns the error to raise."""
        self._error = RequestCancelledError("the request was cancelled")
        return self._error
