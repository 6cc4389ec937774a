"""Copies between pools of one process: for tests, and for a worker pair that shares a process."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kv_transfer.transports.base import (
    PullState,
    Transport,
    TransportConfig,
    check_block_bytes,
    check_blocks,
)
from kv_transfer.types import PeerLostError, PoolRegion, TransferError

_MAGIC = "kvrelay-in-process/1"


@dataclass(frozen=True, slots=True)
class _Pools:
    """Pools of this process that may be read, by key. Guarded by the lock."""

    regions: dict[str, PoolRegion]
    lock: threading.Lock
    serial: itertools.count[int]


_POOLS = _Pools({}, threading.Lock(), itertools.count())


class InProcessPull:
    """A copy that runs once its transport's gate lets it."""

    def __init__(
        self,
        gate: Callable[[InProcessPull], PullState],
        peer: str,
        local: PoolRegion,
        local_blocks: tuple[int, ...],
        remote_blocks: tuple[int, ...],
        block_bytes: int,
    ) -> None:
        self.peer = peer
        self.local_blocks = local_blocks
        self.remote_blocks = remote_blocks
        self.num_bytes = len(local_blocks) * block_bytes
        self.error: TransferError | None = None
        self._gate = gate
        self._local = local
        self._state = PullState.PENDING
        self._lock = threading.Lock()

    def poll(self) -> PullState:
        """Asks the gate while pending, and copies where it says DONE."""
        with self._lock:
            if self._state is PullState.PENDING:
                self._state = self._advance()
            return self._state

    def _advance(self) -> PullState:
        # The pools' lock is held through the copy, so that a pool cannot be closed and freed during it.
        with _POOLS.lock:
            remote = _POOLS.regions.get(self.peer)
            if remote is None:
                self.error = PeerLostError(f"peer {self.peer} has closed its pool")
                return PullState.FAILED
            state = self._gate(self)
            if state is PullState.FAILED:
                self.error = TransferError(f"the read from {self.peer} failed")
            if state is PullState.DONE:
                for ours, theirs in zip(self.local_blocks, self.remote_blocks, strict=True):
                    ctypes.memmove(
                        self._local.address + ours * self._local.block_bytes,
                        remote.address + theirs * remote.block_bytes,
                        remote.block_bytes,
                    )
            return state


def _pass(_: InProcessPull) -> PullState:
    return PullState.DONE


class InProcessTransport:
    """Transport whose peers are found in a table of the process.

    `gate` is asked at the start and at each poll of a read that is not settled: PENDING holds the read,
    FAILED fails it, DONE lets it copy. Tests set it to see what a slow or broken peer does.
    """

    name = "in_process"

    def __init__(self, config: TransportConfig) -> None:
        self.gate: Callable[[InProcessPull], PullState] = _pass
        self._key = f"{config.worker_id}.{config.incarnation}.{next(_POOLS.serial)}"
        self._region: PoolRegion | None = None
        self._peers: dict[str, PoolRegion] = {}

    def register(self, region: PoolRegion) -> None:
        """Makes the pool readable in this process. Raises RuntimeError when called again."""
        if self._region is not None:
            raise RuntimeError("the pool is registered already")
        self._region = region
        with _POOLS.lock:
            _POOLS.regions[self._key] = region

    def export(self) -> bytes:
        """Process id and key of the pool. Raises RuntimeError before `register`."""
        self._registered()
        return f"{_MAGIC} {os.getpid()} {self._key}".encode()

    def connect(self, exported: bytes) -> str:
        """Finds the peer's pool. Raises as the seam says; another process is refused."""
        local = self._registered()
        parts = exported.decode(errors="replace").split(" ", 2)
        if len(parts) != 3 or parts[0] != _MAGIC:
            raise TransferError("the peer's pool is not described in this transport's terms")
        _, pid, key = parts
        if pid != str(os.getpid()):
            raise TransferError(f"the pool is in process {pid}: {self.name} cannot reach it")
        with _POOLS.lock:
            remote = _POOLS.regions.get(key)
        if remote is None:
            raise PeerLostError(f"peer {key} has closed its pool")
        check_block_bytes(local, remote.block_bytes)
        self._peers[key] = remote
        return key

    def start_pull(
        self, peer: str, local_blocks: Sequence[int], remote_blocks: Sequence[int]
    ) -> InProcessPull:
        """Starts a read, and copies at once where the gate lets it."""
        local = self._registered()
        if peer not in self._peers:
            raise PeerLostError(f"peer {peer} is not connected")
        remote = self._peers[peer]
        check_blocks(local_blocks, local.num_blocks, remote_blocks, remote.num_blocks)
        blocks = tuple(local_blocks), tuple(remote_blocks)
        pull = InProcessPull(self._ask_gate, peer, local, *blocks, remote.block_bytes)
        pull.poll()
        return pull

    def disconnect(self, peer: str) -> None:
        """Forgets a peer."""
        self._peers.pop(peer, None)

    def close(self) -> None:
        """Takes the pool out of the table: reads from it fail from now on."""
        with _POOLS.lock:
            _POOLS.regions.pop(self._key, None)
        self._peers.clear()

    def _ask_gate(self, pull: InProcessPull) -> PullState:
        return self.gate(pull)

    def _registered(self) -> PoolRegion:
        if self._region is None:
            raise RuntimeError("no pool is registered")
        return self._region


def create(config: TransportConfig) -> Transport:
    """Opens the transport."""
    return InProcessTransport(config)
