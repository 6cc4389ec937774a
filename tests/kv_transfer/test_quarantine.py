from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from kv_transfer.quarantine import Quarantine
from kv_transfer.transports.base import PullState
from kv_transfer.types import TransferError
from tests.support.clock import Clock

ALARM_S = 10.0


class Read:
    """A pull whose end the test decides."""

    def __init__(self, *blocks: int) -> None:
        self.local_blocks = blocks
        self.num_bytes = len(blocks)
        self.error: TransferError | None = None
        self.state = PullState.PENDING

    def poll(self) -> PullState:
        return self.state


@pytest.fixture
def clock() -> Clock:
    return Clock(50.0)


@pytest.fixture
def ledger(clock: Clock) -> Quarantine:
    return Quarantine(alarm_s=ALARM_S, clock=clock)


@pytest.mark.parametrize("end", [PullState.DONE, PullState.FAILED])
def test_blocks_come_out_once_their_read_has_settled(ledger: Quarantine, end: PullState) -> None:
    first, second = Read(1, 2), Read(3)
    ledger.park(first)
    ledger.park(second)
    assert ledger.poll() == ()
    assert ledger.blocks == {1, 2, 3}
    first.state = end
    assert ledger.poll() == (1, 2)
    assert ledger.poll() == ()
    assert ledger.blocks == {3}
    assert len(ledger) == 1


def test_a_settled_read_may_be_parked(ledger: Quarantine) -> None:
    read = Read(4)
    read.state = PullState.DONE
    ledger.park(read)
    assert ledger.blocks == {4}
    assert ledger.poll() == (4,)


def test_a_block_waits_for_every_read_that_names_it(ledger: Quarantine) -> None:
    first, second = Read(1, 2), Read(2, 3)
    ledger.park(first)
    ledger.park(second)
    second.state = PullState.FAILED
    assert ledger.poll() == (3,)
    first.state = PullState.DONE
    assert ledger.poll() == (1, 2)


def test_age_and_alarm(ledger: Quarantine, clock: Clock) -> None:
    assert ledger.oldest_s == 0
    first, second = Read(1), Read(2)
    ledger.park(first)
    clock.now_s += 7
    ledger.park(second)
    clock.now_s += 3
    assert ledger.oldest_s == 10
    assert not ledger.alarmed
    clock.now_s += 0.5
    assert ledger.alarmed
    first.state = PullState.DONE
    ledger.poll()
    assert ledger.oldest_s == 3.5
    assert not ledger.alarmed


def test_the_bound_must_be_positive(clock: Clock) -> None:
    with pytest.raises(ValueError, match="positive"):
        Quarantine(alarm_s=0, clock=clock)


class Ledger(RuleBasedStateMachine):
    """Blocks leave once, and only when no unsettled read names them."""

    reads = Bundle("reads")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(50.0)
        self.ledger = Quarantine(alarm_s=ALARM_S, clock=self.clock)
        self.parked: list[Read] = []

    @rule(target=reads, blocks=st.sets(st.integers(0, 6), min_size=1, max_size=3))
    def park(self, blocks: set[int]) -> Read:
        read = Read(*sorted(blocks))
        self.parked.append(read)
        self.ledger.park(read)
        return read

    @rule(read=reads, well=st.booleans())
    def settle(self, read: Read, well: bool) -> None:
        if read.state is PullState.PENDING:
            read.state = PullState.DONE if well else PullState.FAILED

    @rule(seconds=st.floats(0, 8))
    def time_passes(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @rule()
    def poll(self) -> None:
        before = self.ledger.blocks
        out = self.ledger.poll()
        self.parked = [read for read in self.parked if read.state is PullState.PENDING]
        held = {block for read in self.parked for block in read.local_blocks}
        assert not Counter(out) - Counter(set(out)), "reported twice"
        assert set(out) == before - held
        assert self.ledger.blocks == held

    @invariant()
    def nothing_is_lost(self) -> None:
        self.ledger.check_invariants()
        assert len(self.ledger) == len(self.parked)
        assert self.ledger.blocks == {block for read in self.parked for block in read.local_blocks}
        assert self.ledger.oldest_s >= 0


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
