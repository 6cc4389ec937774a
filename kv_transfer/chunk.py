"""One read on its way: queued for the transport's thread, posted, settled."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

from kv_transfer.transports.base import Pull, PullState, Transport
from kv_transfer.types import TransferError


class ReadChunk:
    """A read from before it is posted until it has settled. Is a Pull, to be quarantined as it is.

    `start_unix_ns` is the beginning of the post, `end_unix_ns` when the read was seen to be DONE (wall
    clock); `seconds` lies between them on the monotonic clock.
    """

    def __init__(self, peer: str, local_blocks: tuple[int, ...], remote_blocks: tuple[int, ...]) -> None:
        self.local_blocks = local_blocks
        self.num_bytes = 0
        self.error: TransferError | None = None
        self.start_unix_ns = 0
        self.end_unix_ns = 0
        self.seconds = 0.0
        self._peer = peer
        self._remote_blocks = remote_blocks
        self._began = 0.0
        self._posting: Future[None] | None = None
        self._pull: Pull | None = None
        self._state = PullState.PENDING

    def post(self, thread: ThreadPoolExecutor, transport: Transport) -> Future[None]:
        """Queues the post. The future raises nothing: `poll` says how it went."""
        self._posting = thread.submit(self._post, transport)
        return self._posting

    def cancel_post(self) -> None:
        """Takes the read back where the post has not begun: it is then settled, as FAILED."""
        if self._posting is not None:
            self._posting.cancel()

    def poll(self) -> PullState:
        """State of the read; PENDING too while it is queued or being posted."""
        if self._state is PullState.PENDING and self._posting is not None and self._posting.done():
            self._ask()
        return self._state

    def _post(self, transport: Transport) -> None:
        self.start_unix_ns = time.time_ns()
        self._began = time.monotonic()
        try:
            self._pull = transport.start_pull(self._peer, self.local_blocks, self._remote_blocks)
        except TransferError as error:
            self._settle(PullState.FAILED, error)
        except Exception as error:
            # Whatever a transport raises (a peer may name blocks that it does not have), the seam says that
            # nothing is written afterwards, and the request has to learn of it.
            failure = TransferError(f"the read from {self._peer} could not be posted: {error}")
            failure.__cause__ = error
            self._settle(PullState.FAILED, failure)
        else:
            # Many reads are done once posted: ask here, where the time is measured best.
            self._ask()

    def _ask(self) -> None:
        if self._pull is None:
            # Cancelled, by `cancel_post` or by the thread's shutdown: `_post` leaves a pull or is settled.
            self._settle(PullState.FAILED, TransferError(f"the read from {self._peer} was never posted"))
            return
        state = self._pull.poll()
        if state is not PullState.PENDING:
            self.num_bytes = self._pull.num_bytes
            self._settle(state, self._pull.error)

    def _settle(self, state: PullState, error: TransferError | None) -> None:
        self.error = error
        self.end_unix_ns = time.time_ns()
        self.seconds = time.monotonic() - self._began
        self._state = state
