"""Host memory that preempted sequences' KV is swapped to."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.kv.storage import KvMemoryError


class HostPool:
    """Blocks in host memory, to swap to; implements `engine.kv.swap.HostBlocks`.

    Args:
        kv: the pool that blocks come from and return to.
        memory_bytes: what to take; as many whole blocks as fit, perhaps none. Pages that are never used
            cost nothing where the pool itself is in host memory; otherwise all are pinned, for the speed of
            copies.

    Raises:
        KvMemoryError: the memory is not there.
    """

    def __init__(self, kv: torch.Tensor, memory_bytes: int) -> None:
        self._kv = kv
        blocks = memory_bytes // (kv[0].numel() * kv.itemsize)
        try:
            self._memory = torch.empty((blocks, *kv.shape[1:]), dtype=kv.dtype, pin_memory=kv.is_cuda)
        except RuntimeError as error:  # torch's allocators raise no narrower type
            raise KvMemoryError(f"cannot allocate {memory_bytes} bytes to swap to: {error}") from error

    @property
    def total(self) -> int:
        """Blocks that it holds."""
        return len(self._memory)

    def save(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copies blocks of the pool to slots of this memory; done on return."""
        self._memory[list(slots)] = self._kv[list(blocks)].to(self._memory.device)

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copies slots of this memory to blocks of the pool; done, for the pool's next user, on return."""
        self._kv[list(blocks)] = self._memory[list(slots)].to(self._kv.device)
