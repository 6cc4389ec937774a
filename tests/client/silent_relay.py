"""A TCP relay that can fall silent: connections stay open, and nothing passes any more."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class SilentRelay:
    """Relays one connection to a port of this machine, in threads, until `silence()`.

    Attributes:
        port: where it listens.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._silent = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]

    def silence(self) -> None:
        """From now on nothing passes; the connection stays as it is."""
        self._silent.set()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not self._silent.is_set():
                    sink.sendall(data)

    def _relay(self) -> None:
        with suppress(OSError):
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._target))
            self._ends += [near, far]
            back = threading.Thread(target=self._pump, args=(far, near))
            back.start()
            self._pump(near, far)
            back.join()

    @contextmanager
    def running(self) -> Iterator[SilentRelay]:
        """Relays until the block ends."""
        thread = threading.Thread(target=self._relay)
        thread.start()
        try:
            yield self
        finally:
            for end in (*self._ends, self._listener):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
            thread.join()
