"""Memory to swap to without memory: notes what is copied."""

from __future__ import annotations

from collections.abc import Sequence


class ListedHost:
    """As `engine.kv.host_pool.HostPool`, for bookkeeping alone.

    Attributes:
        total: blocks that it holds.
        saved: (blocks, slots) of each copy out.
        loaded: (slots, blocks) of each copy back.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.saved: list[tuple[list[int], list[int]]] = []
        self.loaded: list[tuple[list[int], list[int]]] = []

    def save(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Notes a copy out."""
        self.saved.append((list(blocks), list(slots)))

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Notes a copy back."""
        self.loaded.append((list(slots), list(blocks)))
