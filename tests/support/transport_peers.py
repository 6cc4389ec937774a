"""Peers to read from, for each transport: alive, hanging or killed."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from kv_transfer.transports.base import PullState, Transport, TransportConfig
from kv_transfer.transports.in_process import InProcessPull, InProcessTransport
from tests.support.pools import BLOCK_BYTES, NUM_BLOCKS, filled_pool, region_of

ROOT = Path(__file__).resolve().parents[2]
READY = "EXPORTED "


class Peer(Protocol):
    """Something with a filled pool (`tests.support.pools.filled_pool`)."""

    exported: bytes

    def hang(self) -> None:
        """Reads from it stay pending from now on. Called before the first connection."""
        ...

    def kill(self) -> None:
        """It is gone without a word, hanging or not."""
        ...


class NixlPeer:
    """A process of its own. Ends when its stdin is closed, so none outlives the tests."""

    def __init__(self, block_bytes: int) -> None:
        command = [sys.executable, "-m", "tests.support.nixl_peer", str(NUM_BLOCKS), str(block_bytes)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(READY), f"the peer did not come up: {line!r}"
        self.exported = base64.b64decode(line.removeprefix(READY))

    def hang(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


class InProcessPeer:
    """A second transport of this process; it hangs by the gate of the reading one."""

    def __init__(self, reader: InProcessTransport, block_bytes: int) -> None:
        self._reader = reader
        self._transport = InProcessTransport(TransportConfig("peer", 1))
        self._transport.register(region_of(filled_pool(block_bytes=block_bytes)))
        self.exported = self._transport.export()

    def hang(self) -> None:
        ours = self.exported
        before = self._reader.gate

        def gate(pull: InProcessPull) -> PullState:
            return PullState.PENDING if ours.endswith(pull.peer.encode()) else before(pull)

        self._reader.gate = gate

    def kill(self) -> None:
        self._transport.close()


def _nixl_peer(_: Transport, block_bytes: int) -> Peer:
    return NixlPeer(block_bytes)


def _in_process_peer(reader: Transport, block_bytes: int) -> Peer:
    assert isinstance(reader, InProcessTransport)
    return InProcessPeer(reader, block_bytes)


# One entry for each file in kv_transfer/transports.
PEERS: dict[str, Callable[[Transport, int], Peer]] = {"in_process": _in_process_peer, "nixl": _nixl_peer}


def start_peer(reader: Transport, block_bytes: int = BLOCK_BYTES) -> Peer:
    """A peer that `reader` can connect to. The caller kills it."""
    return PEERS[reader.name](reader, block_bytes)
