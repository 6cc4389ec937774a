"""The transport seam: register memory, export, pull, close. One file for each transport."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

from kv_transfer.types import PoolRegion


class PullState(Enum):
    """State of one read. DONE and FAILED are settled: the destination is not written any more."""

    PENDING = auto()
    DONE = auto()
    FAILED = auto()


class Pull(Protocol):
    """One read in flight. There is no cancel: NIXL cannot stop a read, so nobody pretends to."""

    local_blocks: tuple[int, ...]
    num_bytes: int
    error: str

    def poll(self) -> PullState:
        """Current state; cheap, never blocks. `error` is set once FAILED."""
        ...


class Transport(Protocol):
    """Moves blocks between the pools of two processes. Block i of a pool is `address + i * block_bytes`.

    Methods are called from one event loop; `start_pull` may block for the copy and is therefore called
    through a thread by `kv_transfer.reader`.
    """

    name: str

    def register(self, region: PoolRegion) -> None:
        """Registers the process's pool. Called once."""
        ...

    def export(self) -> bytes:
        """What a peer needs to read from this pool; opaque, travels in `Attached.pool`."""
        ...

    def connect(self, exported: bytes) -> str:
        """Prepares reading from a peer, cheap when already connected. Returns the peer's key.

        Raises LayoutMismatchError where block sizes differ, TransferError where the peer is refused.
        """
        ...

    def start_pull(self, peer: str, local_blocks: Sequence[int], remote_blocks: Sequence[int]) -> Pull:
        """Starts reading remote_blocks[i] into local_blocks[i]. Raises PeerLostError."""
        ...

    def disconnect(self, peer: str) -> None:
        """Forgets a peer that is gone. Unknown peers are no error."""
        ...

    def close(self) -> None:
        """Lets the agent go. Pulls in flight are not waited for."""
        ...
