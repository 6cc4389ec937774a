"""Where preempted sequences keep their KV: blocks in host memory, and when that beats computing it again.

A swapped sequence holds no block of the pool, so it can stand in nobody's way; it waits in the queue as any
other and, once it is admitted, has its KV copied back into blocks of its own, but for what the prefix cache
still holds. Copies happen between steps, so nobody writes to a block meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.kv.block_pool import SCRATCH_BLOCK, require

NOT_KEPT = -1
"""In the place of a slot: this block needs none."""
_SHARE = 0.3
"""Weight of the latest copy in the running mean of their speed."""


class HostBlocks(Protocol):
    """Memory for blocks outside the pool. Implemented by `engine.kv.host_pool.HostPool`."""

    @property
    def total(self) -> int:
        """Blocks that it holds."""
        ...

    def save(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copies blocks of the pool to slots of this memory; done on return."""
        ...

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copies slots of this memory to blocks of the pool; done, for the pool's next user, on return."""
        ...


@dataclass(frozen=True, slots=True)
class SwappedKv:
    """The KV of a sequence's first `num_tokens` tokens.

    Its block i lies in slot `slots[i]`; `NOT_KEPT` is one that was let go, behind a window.
    """

    slots: tuple[int, ...]
    num_tokens: int


class SwapSpace:
    """Slots of host memory, who has them, and what copying costs.

    Args:
        host: the memory.
        recompute_s: estimated time to compute one token of a context anew; None where it is not known,
            and then copying is taken for the cheaper way, as it nearly always is.
        clock: monotonic seconds.

    Attributes:
        blocks_out_total: blocks copied to host memory since the start.
        blocks_in_total: blocks copied back.
    """

    def __init__(
        self, host: HostBlocks, recompute_s: Callable[[], float | None], clock: Callable[[], float]
    ) -> None:
        self._host = host
        self._recompute_s = recompute_s
        self._clock = clock
        # Slots from `_fresh` on have never been used; those of the list have been given back.
        self._fresh = 0
        self._returned: list[int] = []
        self._copy_s: float | None = None
        self.blocks_out_total = 0
        self.blocks_in_total = 0

    @property
    def total(self) -> int:
        """Blocks that fit."""
        return self._host.total

    @property
    def used(self) -> int:
        """Blocks that are here."""
        return self._fresh - len(self._returned)

    def save(self, blocks: Sequence[int], num_tokens: int) -> SwappedKv | None:
        """Copies the blocks of a sequence's first `num_tokens` tokens out, if that is worth it.

        Args:
            blocks: theirs, 0 for those that were let go.
            num_tokens: that are computed, however many of them are still held.

        Returns:
            What to give to `load` and `release`; None, nothing done, where computing the tokens anew is
            cheaper, where there are none, or where there is no room.
        """
        held = [block for block in blocks if block != SCRATCH_BLOCK]
        if not num_tokens or len(held) > self.total - self.used or not self._pays(len(held), num_tokens):
            return None
        slots = tuple(NOT_KEPT if block == SCRATCH_BLOCK else self._take() for block in blocks)
        # All may lie behind a short window: then there is nothing to copy, nor to compute again.
        if held:
            start = self._clock()
            self._host.save(held, _kept(slots))
            self._measured(len(held), start)
            self.blocks_out_total += len(held)
        return SwappedKv(slots, num_tokens)

    def load(self, kept: SwappedKv, blocks: Sequence[int], skip: int) -> None:
        """Copies KV back into a sequence's blocks, all but its first `skip`, and lets the slots go."""
        wanted = _kept(kept.slots[skip:])
        if wanted:
            start = self._clock()
            places = range(skip, len(kept.slots))
            self._host.load(wanted, [blocks[place] for place in places if kept.slots[place] != NOT_KEPT])
            self._measured(len(wanted), start)
            self.blocks_in_total += len(wanted)
        self.release(kept)

    def release(self, kept: SwappedKv) -> None:
        """Lets the slots go: nobody wants this KV any more."""
        self._returned.extend(_kept(kept.slots))

    def check_invariants(self, holders: Sequence[SwappedKv]) -> None:
        """Raises AssertionError naming the broken invariant. `holders` are all that is swapped out."""
        held = [slot for kept in holders for slot in _kept(kept.slots)]
        require(len(held) == self.used, "as many swap slots are in use as swapped sequences hold")
        require(
            sorted(held + self._returned) == list(range(self._fresh)),
            "each swap slot is either free or held once",
        )
        require(self._fresh <= self.total, "swap slots lie in the memory")

    def _take(self) -> int:
        if self._returned:
            return self._returned.pop()
        self._fresh += 1
        return self._fresh - 1

    def _pays(self, num_blocks: int, num_tokens: int) -> bool:
        recompute_s = self._recompute_s()
        if recompute_s is None or self._copy_s is None:
            return True
        return 2 * num_blocks * self._copy_s <= num_tokens * recompute_s

    def _measured(self, num_blocks: int, start_s: float) -> None:
        seconds = (self._clock() - start_s) / num_blocks
        before = seconds if self._copy_s is None else self._copy_s
        self._copy_s = before + _SHARE * (seconds - before)


def _kept(slots: Sequence[int]) -> list[int]:
    return [slot for slot in slots if slot != NOT_KEPT]
