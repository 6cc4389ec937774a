"""NIXL over UCX: one-sided reads between processes, by shared memory (CMA), TCP or RDMA.

NIXL 1.5. What is peculiar about it and shapes this file:
- A read cannot be stopped: releasing an active handle answers OK and the bytes land all the same. So a
  handle is released only when its read is settled.
- One mutex guards an agent. While one thread posts a read, and over CMA posting is the copy, every other
  call waits; `poll` must not, so it asks NIXL only when nobody else does.
- The progress thread spins unless its delay is set, which the Python layer does not offer.
"""

from __future__ import annotations

import logging
import os
import secrets
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import nixl._api as nixl_api
import nixl._bindings as nixl_bindings
import numpy as np
import torch

from kv_transfer.transports.base import (
    PullState,
    Transport,
    TransportConfig,
    check_block_bytes,
    check_blocks,
)
from kv_transfer.types import PeerLostError, PoolRegion, TransferError
from telemetry.logs import fields

logger = logging.getLogger(__name__)

_PROGRESS_DELAY_US = 200
_HEADER = struct.Struct("!4sBQQQ")
_MAGIC = b"KVNX"
_VERSION = 1
_LOOPBACK_SETTINGS = {
    "UCX_NET_DEVICES": "lo",
    "UCX_TLS": "tcp,cma",
    # A peer that was killed is no error of the network here, and is logged by this file.
    "UCX_LOG_LEVEL": "fatal",
}
_SETTINGS = {"UCX_LOG_FILE": "stderr"}

_Disconnected: type[Exception] = nixl_bindings.nixlRemoteDisconnectError
# The bindings' exceptions have no base class of their own.
_ERRORS: tuple[type[Exception], ...] = tuple(
    value for name, value in vars(nixl_bindings).items() if name.startswith("nixl") and name.endswith("Error")
)
_config_patch = threading.Lock()
# Agents closed while reads were in flight. Destroying one would release the handles, so they stay.
_unsettled_agents: list[NixlTransport] = []


def _configure(host: str) -> None:
    """Settings that UCX reads when the first agent is made; those of the operator win.

    On other hosts than loopback UCX chooses devices by itself.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if host in ("localhost", "::1") or host.startswith("127."):
        for name, value in _LOOPBACK_SETTINGS.items():
            os.environ.setdefault(name, value)
    # NIXL's import installs a handler of its own on stdout and silences the errors of all handlers.
    nixl_logger = logging.getLogger("nixl")
    nixl_logger.handlers.clear()
    nixl_logger.propagate = True
    nixl_logger.setLevel(logging.WARNING)
    logging.raiseExceptions = True


@contextmanager
def _progress_delay() -> Iterator[None]:
    """Agents made inside have a progress thread that sleeps between rounds instead of spinning."""
    plain = nixl_bindings.nixlAgentConfig

    def set_attribute(config: object, name: str, value: object) -> None:
        plain.__setattr__(config, name, _PROGRESS_DELAY_US if name == "pthrDelay" else value)

    with _config_patch:
        nixl_bindings.nixlAgentConfig = type("nixlAgentConfig", (plain,), {"__setattr__": set_attribute})
        try:
            yield
        finally:
            nixl_bindings.nixlAgentConfig = plain


def _descriptors(
    address: int, num_blocks: int, block_bytes: int, num_bytes: int
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Rows (address, bytes, device 0), shape [num_blocks, 3]: descriptor i begins block i."""
    rows = np.zeros((num_blocks, 3), np.uint64)
    rows[:, 0] = np.uint64(address) + np.arange(num_blocks, dtype=np.uint64) * np.uint64(block_bytes)
    rows[:, 1] = num_bytes
    return rows


def _unpack(exported: bytes) -> tuple[int, int, int, bytes]:
    """Address, blocks, bytes of a block and NIXL's metadata. Raises TransferError."""
    if len(exported) <= _HEADER.size:
        raise TransferError("the peer's pool is not described in this transport's terms")
    magic, version, address, num_blocks, block_bytes = _HEADER.unpack_from(exported)
    if magic != _MAGIC or version != _VERSION:
        raise TransferError(f"the peer describes its pool as {magic!r} version {version}, not {_VERSION}")
    return address, num_blocks, block_bytes, exported[_HEADER.size :]


def _agent_name(config: TransportConfig) -> str:
    return f"{config.worker_id}.{config.incarnation}.{secrets.token_hex(4)}"


def _process_of(agent_name: str) -> tuple[str, int]:
    """Worker id and incarnation in an agent's name."""
    worker_id, incarnation, _ = agent_name.rsplit(".", 2)
    return worker_id, int(incarnation)


@dataclass(slots=True, eq=False)
class _Peer:
    """A connected peer. `lost`: NIXL said so. `forgotten`: to be removed once its reads have settled."""

    name: str
    exported: bytes
    num_blocks: int
    block_bytes: int
    descriptors: Any
    in_flight: int = 0
    lost: bool = False
    forgotten: bool = False


class NixlPull:
    """One READ. The transport keeps it while it is in flight, so its handle outlives every caller."""

    def __init__(self, transport: NixlTransport, local_blocks: tuple[int, ...], num_bytes: int) -> None:
        self.local_blocks = local_blocks
        self.num_bytes = num_bytes
        self.error: TransferError | None = None
        self.state = PullState.PENDING
        self._transport = transport

    def poll(self) -> PullState:
        """Current state; the last one known while another thread uses the agent."""
        if self.state is PullState.PENDING:
            self._transport.refresh_if_free()
        return self.state


class NixlTransport:
    """One NIXL agent. Thread-safe.

    The agent's name is new for each instance: under a name that it knows, NIXL refuses a restarted peer.
    """

    name = "nixl"

    def __init__(self, config: TransportConfig) -> None:
        _configure(config.host)
        with _progress_delay():
            self._agent = nixl_api.nixl_agent(
                _agent_name(config),
                nixl_api.nixl_agent_config(
                    enable_prog_thread=True,
                    sync_mode=nixl_api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,
                ),
            )
        self._lock = threading.Lock()
        self._region: PoolRegion | None = None
        self._closed = False
        # Of the beginnings of all blocks, by how many bytes of each.
        self._local_descriptors: dict[int, Any] = {}
        self._peers: dict[str, _Peer] = {}
        self._in_flight: dict[NixlPull, tuple[_Peer, Any]] = {}

    def register(self, region: PoolRegion) -> None:
        """Registers the pool. Raises RuntimeError when called again, ValueError for device memory."""
        if self._region is not None:
            raise RuntimeError("the pool is registered already")
        if isinstance(region.owner, torch.Tensor) and region.owner.device.type != "cpu":
            raise ValueError(f"this transport moves host memory only, not that of {region.owner.device}")
        with self._lock:
            num_bytes = region.num_blocks * region.block_bytes
            self._agent.register_memory([(region.address, num_bytes, 0, "")], "DRAM")
            self._prepare_local(region, region.block_bytes)
            self._region = region

    def export(self) -> bytes:
        """Version, pool and NIXL's metadata of this agent. Raises RuntimeError before `register`."""
        region = self._registered()
        header = _HEADER.pack(_MAGIC, _VERSION, region.address, region.num_blocks, region.block_bytes)
        with self._lock:
            metadata: bytes = self._agent.get_agent_metadata()
        return header + metadata

    def connect(self, exported: bytes) -> str:
        """Loads the peer's metadata and begins to connect. A peer that was lost is loaded anew.

        Raises as the seam says, PeerLostError while reads from a lost peer have not settled.
        """
        local = self._registered()
        address, num_blocks, block_bytes, metadata = _unpack(exported)
        check_block_bytes(local, block_bytes)
        with self._lock:
            known = next((peer for peer in self._peers.values() if peer.exported == exported), None)
            if known is not None and known.lost:
                if known.in_flight:
                    raise PeerLostError(f"peer {known.name} was lost and reads from it have not settled")
                self._remove(known)
            elif known is not None:
                known.forgotten = False
                return known.name
            try:
                name: str = self._agent.add_remote_agent(metadata).decode()
                rows = _descriptors(address, num_blocks, block_bytes, block_bytes)
                descriptors = self._agent.prep_xfer_dlist(name, rows, "DRAM")
                self._prepare_local(local, block_bytes)
                self._agent.make_connection(name)
            except _ERRORS as error:
                raise TransferError(f"NIXL refuses the peer: {error}") from error
            self._peers[name] = _Peer(name, exported, num_blocks, block_bytes, descriptors)
            self._forget_older(name)
            return name

    def start_pull(self, peer: str, local_blocks: Sequence[int], remote_blocks: Sequence[int]) -> NixlPull:
        """Posts one READ. Over CMA this copies, with the GIL released. Raises as the seam says."""
        local = self._registered()
        with self._lock:
            found = self._peers.get(peer)
            if found is None or found.lost or found.forgotten:
                raise PeerLostError(f"peer {peer} is {'lost' if found else 'not connected'}")
            check_blocks(local_blocks, local.num_blocks, remote_blocks, found.num_blocks)
            pull = NixlPull(self, tuple(local_blocks), len(local_blocks) * found.block_bytes)
            try:
                handle = self._agent.make_prepped_xfer(
                    "READ",
                    self._local_descriptors[found.block_bytes],
                    np.asarray(local_blocks, np.int32),
                    found.descriptors,
                    np.asarray(remote_blocks, np.int32),
                )
                self._agent.transfer(handle)
            except _Disconnected as error:
                self._lose(found)
                raise PeerLostError(f"peer {peer} is gone: {error}") from error
            except _ERRORS as error:
                raise TransferError(f"NIXL refuses the read from {peer}: {error}") from error
            found.in_flight += 1
            self._in_flight[pull] = (found, handle)
            self._refresh()
        return pull

    def refresh_if_free(self) -> None:
        """Brings the states of all pulls up to date, unless another thread uses the agent."""
        if self._lock.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self._lock.release()

    def disconnect(self, peer: str) -> None:
        """Forgets a peer, at once or when its last read has settled."""
        with self._lock:
            found = self._peers.get(peer)
            if found is not None:
                self._forget(found)

    def close(self) -> None:
        """Destroys the agent; with reads in flight it lives on, unreachable but for their polls."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._refresh()
            if self._in_flight:
                logger.warning("closed with reads in flight", extra=fields(reads=len(self._in_flight)))
                _unsettled_agents.append(self)
                return
            for peer in list(self._peers.values()):
                self._remove(peer)
            for descriptors in self._local_descriptors.values():
                descriptors.release()
            self._agent = None

    def _prepare_local(self, region: PoolRegion, num_bytes: int) -> None:
        if num_bytes not in self._local_descriptors:
            rows = _descriptors(region.address, region.num_blocks, region.block_bytes, num_bytes)
            self._local_descriptors[num_bytes] = self._agent.prep_xfer_dlist("NIXL_INIT_AGENT", rows, "DRAM")

    def _registered(self) -> PoolRegion:
        if self._region is None or self._closed:
            raise RuntimeError("no pool is registered" if self._region is None else "the transport is closed")
        return self._region

    def _refresh(self) -> None:
        for pull, (peer, handle) in list(self._in_flight.items()):
            try:
                status = self._agent.check_xfer_state(handle)
            except _Disconnected as error:
                self._lose(peer)
                self._settle(pull, PeerLostError(f"peer {peer.name} is gone: {error}"))
            except _ERRORS as error:
                self._settle(pull, TransferError(f"the read from {peer.name} failed: {error}"))
            else:
                if status == "DONE":
                    self._settle(pull, None)
                elif status != "PROC":
                    self._settle(pull, TransferError(f"the read from {peer.name} failed: {status}"))

    def _settle(self, pull: NixlPull, error: TransferError | None) -> None:
        peer, handle = self._in_flight.pop(pull)
        _release(handle)
        peer.in_flight -= 1
        if peer.forgotten and not peer.in_flight:
            self._remove(peer)
        pull.error = error
        # Last: `poll` reads it without the lock.
        pull.state = PullState.DONE if error is None else PullState.FAILED

    def _forget_older(self, name: str) -> None:
        """Forgets the processes that bore a worker's id before; nobody may have seen them die."""
        worker_id, incarnation = _process_of(name)
        for peer in list(self._peers.values()):
            other_id, other_incarnation = _process_of(peer.name)
            if other_id == worker_id and other_incarnation < incarnation:
                self._forget(peer)

    def _forget(self, peer: _Peer) -> None:
        if peer.in_flight:
            peer.forgotten = True
        else:
            self._remove(peer)

    def _lose(self, peer: _Peer) -> None:
        if not peer.lost:
            logger.warning("peer lost", extra=fields(peer=peer.name))
        peer.lost = True

    def _remove(self, peer: _Peer) -> None:
        del self._peers[peer.name]
        _release(peer.descriptors)
        try:
            self._agent.remove_remote_agent(peer.name)
        except _ERRORS as error:
            logger.warning("NIXL does not remove a peer", extra=fields(peer=peer.name, error=str(error)))


def _release(handle: Any) -> None:
    try:
        handle.release()
    except _ERRORS as error:
        # Nothing to be done here; the handle's finalizer tries again.
        logger.warning("NIXL does not release a handle", extra=fields(error=str(error)))


def create(config: TransportConfig) -> Transport:
    """Opens the transport."""
    return NixlTransport(config)
