"""The transport seam: register memory, export, pull, close. One file for each transport.

A transport file holds one function, `create(config: TransportConfig) -> Transport`; the file's name is the
transport's name (see `kv_transfer.registry`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from kv_transfer.types import LayoutMismatchError, PoolRegion, TransferError


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """Who opens the transport. `host` is the address that the worker advertises to its peers."""

    worker_id: str
    incarnation: int
    host: str = "127.0.0.1"


class PullState(Enum):
    """State of one read. DONE and FAILED are settled: the destination is not written any more."""

    PENDING = auto()
    DONE = auto()
    FAILED = auto()


class Pull(Protocol):
    """One read in flight. There is no cancel: NIXL cannot stop a read, so nobody pretends to.

    `error` is None until FAILED, then a TransferError, or a PeerLostError where the peer is gone.
    """

    local_blocks: tuple[int, ...]
    num_bytes: int
    error: TransferError | None

    def poll(self) -> PullState:
        """Current state; cheap, never blocks, never raises. Once settled, the answer stays."""
        ...


class Transport(Protocol):
    """Moves blocks between the pools of two processes. Block i of a pool is `address + i * block_bytes`.

    `connect`, `start_pull` and `disconnect` may block for the copy, and are therefore called from the one
    thread of `kv_transfer.reader`; `poll` is called from the event loop meanwhile.
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

        A peer's blocks may be shorter than one's own: they are read to the beginning of these. Raises
        LayoutMismatchError where they are longer, TransferError where the peer is refused.
        """
        ...

    def start_pull(self, peer: str, local_blocks: Sequence[int], remote_blocks: Sequence[int]) -> Pull:
        """Starts reading remote_blocks[i] into local_blocks[i].

        Raises PeerLostError where the peer is gone or unknown, TransferError where it refuses, ValueError
        for blocks outside the pools. Nothing is written after it has raised.
        """
        ...

    def disconnect(self, peer: str) -> None:
        """Forgets a peer that is gone. Unknown peers are no error; pulls in flight settle by themselves."""
        ...

    def close(self) -> None:
        """Lets the agent go. Pulls in flight are not waited for."""
        ...


def check_block_bytes(local: PoolRegion, remote_bytes: int) -> None:
    """Raises LayoutMismatchError where a peer's blocks do not fit into one's own."""
    if remote_bytes > local.block_bytes:
        raise LayoutMismatchError(
            f"blocks differ: local {local.block_bytes} bytes, remote {remote_bytes} bytes"
        )


def check_blocks(
    local_blocks: Sequence[int], local_total: int, remote_blocks: Sequence[int], remote_total: int
) -> None:
    """Raises ValueError unless the lists pair distinct local blocks with remote ones, inside the pools."""
    if not local_blocks or len(local_blocks) != len(remote_blocks):
        raise ValueError(f"{len(local_blocks)} local blocks do not pair with {len(remote_blocks)} remote")
    if len(set(local_blocks)) != len(local_blocks):
        raise ValueError("a local block is named twice in one read")
    sides = (("local", local_blocks, local_total), ("remote", remote_blocks, remote_total))
    for side, blocks, total in sides:
        if min(blocks) < 0 or max(blocks) >= total:
            raise ValueError(f"{side} blocks {min(blocks)} to {max(blocks)} do not fit a pool of {total}")
