"""The decode worker's ledger of blocks that a given-up read may still write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from kv_transfer.transports.base import Pull, PullState


@dataclass(frozen=True, slots=True)
class _Parked:
    pull: Pull
    since: float


class Quarantine:
    """Destination blocks of unsettled reads that nobody waits for any more. Not thread-safe.

    A block stays until every parked read that names it has settled; then `poll` reports it, once.

    Args:
        alarm_s: a read that stays longer raises the alarm.
        clock: monotonic seconds.
    """

    def __init__(self, *, alarm_s: float, clock: Callable[[], float]) -> None:
        if alarm_s <= 0:
            raise ValueError("alarm_s must be positive")
        self._alarm_s = alarm_s
        self._clock = clock
        self._parked: list[_Parked] = []
        self._reads_of: Counter[int] = Counter()

    def __len__(self) -> int:
        """Reads parked."""
        return len(self._parked)

    @property
    def blocks(self) -> frozenset[int]:
        """Blocks that must not be used now."""
        return frozenset(self._reads_of)

    @property
    def oldest_s(self) -> float:
        """Seconds that the oldest read has been here; 0 while there is none."""
        return self._clock() - self._parked[0].since if self._parked else 0.0

    @property
    def alarmed(self) -> bool:
        """Whether a read has been here beyond the bound."""
        return self.oldest_s > self._alarm_s

    def park(self, pull: Pull) -> None:
        """Takes a read over. Settled ones are welcome: the next `poll` reports their blocks."""
        self._parked.append(_Parked(pull, self._clock()))
        self._reads_of.update(pull.local_blocks)

    def poll(self) -> tuple[int, ...]:
        """Asks every read for its state and returns the blocks that may be used again, each once."""
        free: list[int] = []
        waiting: list[_Parked] = []
        for parked in self._parked:
            if parked.pull.poll() is PullState.PENDING:
                waiting.append(parked)
                continue
            for block in parked.pull.local_blocks:
                self._reads_of[block] -= 1
                if not self._reads_of[block]:
                    del self._reads_of[block]
                    free.append(block)
        self._parked = waiting
        return tuple(free)

    def check_invariants(self) -> None:
        """Raises AssertionError where the ledger and its reads disagree."""
        expected = Counter(block for parked in self._parked for block in parked.pull.local_blocks)
        assert expected == self._reads_of, f"ledger counts {self._reads_of}, its reads name {expected}"
        ages = [parked.since for parked in self._parked]
        assert ages == sorted(ages), "reads are not in the order of parking"
