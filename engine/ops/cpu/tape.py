"""Computes operations, and again what it computed before: a pass over layers is one call then.

At small batches a pass is some 200 operations of 10 to 100 microseconds each; to find the arguments of one
takes Python several, in which the threads wait.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence

import torch

from engine.ops.cpu.library import Kernels
from engine.ops.cpu.operations import Operation

# Longer passes take long enough for their calls not to matter.
_MOST_ROWS = 64
_MOST_KEPT = 256


class Recording:
    """The operations of a computation, and the tensors that they read and write.

    Args:
        tensors: what it is given.

    Attributes:
        whole: nothing was read but what was given and what earlier operations wrote, so that the same
            operations compute the same again.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._known = {_memory(tensor) for tensor in tensors}
        self._operations: list[Operation] = []
        self._alive: list[torch.Tensor] = list(tensors)
        self.whole = True

    def add(self, operation: Operation, reads: Sequence[torch.Tensor], writes: torch.Tensor) -> None:
        """Notes an operation. `reads` are without weights, which live as long as their model."""
        self.whole = self.whole and all(_memory(tensor) in self._known for tensor in reads)
        self._known.add(_memory(writes))
        self._alive += (*reads, writes)
        self._operations.append(operation)

    def close(self) -> Replay:
        """What computes the same again."""
        return Replay(self._operations, self._alive)


class Replay:
    """Operations one behind the other.

    Args:
        operations: in their order.
        alive: tensors that lie at the addresses that operations name; kept as long as these.
    """

    def __init__(self, operations: Sequence[Operation], alive: Sequence[torch.Tensor]) -> None:
        self.operations: ctypes.Array[Operation] = (Operation * len(operations))(*operations)
        self._alive = tuple(alive)


class Stream:
    """Where operations go that are to be computed, by one thread at a time."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self._recording: Recording | None = None

    def issue(self, operation: Operation, reads: Sequence[torch.Tensor], writes: torch.Tensor) -> None:
        """Computes an operation now."""
        self.kernels.compute(ctypes.byref(operation), 1)
        if self._recording is not None:
            self._recording.add(operation, reads, writes)

    def record(self, recording: Recording, compute: Callable[[], None]) -> None:
        """Computes, and notes what is issued meanwhile."""
        self._recording = recording
        try:
            compute()
        finally:
            self._recording = None


class CpuTape:
    """See the module; implements `engine.ops.base.Tape`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._replays: dict[Hashable, Replay | None] = {}

    def play(self, name: Hashable, tensors: Sequence[torch.Tensor], compute: Callable[[], None]) -> None:
        """As `Tape.play`."""
        rows = len(tensors[0])
        if rows > _MOST_ROWS:
            compute()
            return
        key = (name, rows, *(tensor.data_ptr() for tensor in tensors))
        replay = self._replays.get(key)
        if replay is not None:
            self._stream.kernels.compute(replay.operations, len(replay.operations))
            return
        if key in self._replays:
            compute()
            return
        recording = Recording(tensors)
        self._stream.record(recording, compute)
        if len(self._replays) >= _MOST_KEPT:
            self._replays.clear()
        self._replays[key] = recording.close() if recording.whole else None


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
