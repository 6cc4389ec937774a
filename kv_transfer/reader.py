"""Reads block ranges through any transport, and never loses sight of a block that may still be written.

    reads = reader.open(peer)
    reads.start(local_blocks, remote_blocks, num_tokens)  # as often as KV becomes ready
    totals = await reads.wait()                           # all settled well: validate, then use
    unsettled = reads.give_up()                           # whatever went wrong: Engine.abandon(unsettled)

Blocks that `give_up` returned are reported by `on_settled` once they may be used again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from weakref import WeakValueDictionary

from kv_transfer.chunk import ReadChunk
from kv_transfer.quarantine import Quarantine
from kv_transfer.transports.base import PullState, Transport
from kv_transfer.types import TransferError, TransferTimeoutError
from telemetry.logs import fields

logger = logging.getLogger(__name__)

_FIRST_NAP_S = 1e-4
_LONGEST_NAP_S = 2e-3
_LONGEST_QUARANTINE_NAP_S = 0.05
# One copies while the next is being made ready; more would only queue in front of the thread.
_READS_PER_PEER = 2


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """One range that was read, on the wall clock. `num_tokens` is the caller's, see `KvReads.start`."""

    start_unix_ns: int
    end_unix_ns: int
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ReadTotals:
    """What one handover's reads took. `busy_s` is the sum of their durations, overlapping or not."""

    num_bytes: int
    busy_s: float
    spans: tuple[ReadSpan, ...]


class KvReader:
    """A decode worker's reader: one thread for the transport, the event loop for everything else.

    Args:
        transport: registered already. Closed by its owner, after the reader.
        read_timeout_s: longest that one chunk may take from its turn on.
        chunk_blocks: most blocks in one chunk.
        quarantine: the ledger that takes over what is given up.
        on_settled: told, on the event loop, which blocks have left the quarantine. Must not raise.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        read_timeout_s: float,
        chunk_blocks: int,
        quarantine: Quarantine,
        on_settled: Callable[[tuple[int, ...]], None],
    ) -> None:
        if read_timeout_s <= 0 or chunk_blocks < 1:
            raise ValueError("read_timeout_s must be positive and chunk_blocks at least 1")
        self.transport = transport
        self.read_timeout_s = read_timeout_s
        self.chunk_blocks = chunk_blocks
        self.quarantine = quarantine
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="kv-reader")
        self._on_settled = on_settled
        # Of the peers that somebody reads from.
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._watch: asyncio.Task[None] | None = None

    async def connect(self, exported: bytes) -> str:
        """`Transport.connect` in the reader's thread. Returns the peer's key."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, self.transport.connect, exported)

    async def disconnect(self, peer: str) -> None:
        """`Transport.disconnect` in the reader's thread."""
        await asyncio.get_running_loop().run_in_executor(self.thread, self.transport.disconnect, peer)

    def open(self, peer: str) -> KvReads:
        """The reads of one handover from a connected peer."""
        slots = self._slots.setdefault(peer, asyncio.Semaphore(_READS_PER_PEER))
        return KvReads(self, peer, slots)

    def park(self, chunk: ReadChunk) -> None:
        """Puts an unsettled chunk into quarantine and watches it. Called by `KvReads.give_up`."""
        self.quarantine.park(chunk)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._watch_quarantine())

    async def close(self) -> None:
        """Stops watching the quarantine and lets the thread end. Reads in flight are not waited for."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        self.thread.shutdown(wait=False, cancel_futures=True)

    async def _watch_quarantine(self) -> None:
        nap = _LONGEST_NAP_S
        alarmed = False
        while len(self.quarantine):
            await asyncio.sleep(nap)
            nap = min(nap * 2, _LONGEST_QUARANTINE_NAP_S)
            settled = self.quarantine.poll()
            if settled:
                nap = _LONGEST_NAP_S
                self._on_settled(settled)
            if self.quarantine.alarmed and not alarmed:
                logger.error(
                    "a read does not settle",
                    extra=fields(
                        seconds=round(self.quarantine.oldest_s, 1), blocks=len(self.quarantine.blocks)
                    ),
                )
            alarmed = self.quarantine.alarmed


class KvReads:
    """The reads of one handover. Used from the event loop; ends with `wait` succeeding or with `give_up`."""

    def __init__(self, reader: KvReader, peer: str, slots: asyncio.Semaphore) -> None:
        self._reader = reader
        self._peer = peer
        self._slots = slots
        self._ranges: list[asyncio.Task[None]] = []
        self._unsettled: set[ReadChunk] = set()
        self._failure: TransferError | None = None
        self._failed = asyncio.Event()
        self._spans: list[ReadSpan] = []
        self._busy_s = 0.0

    def start(self, local_blocks: Sequence[int], remote_blocks: Sequence[int], num_tokens: int) -> None:
        """Starts reading remote_blocks[i] into local_blocks[i]; no effect once a read has failed.

        `num_tokens` goes into the range's span: context tokens that are here once the range is.
        Raises ValueError for lists of different lengths.
        """
        if len(local_blocks) != len(remote_blocks):
            raise ValueError(f"{len(local_blocks)} local blocks, {len(remote_blocks)} remote blocks")
        if self._failure is None and local_blocks:
            read = self._read_range(tuple(local_blocks), tuple(remote_blocks), num_tokens)
            self._ranges.append(asyncio.get_running_loop().create_task(read))

    async def wait(self) -> ReadTotals:
        """Waits for every read started so far, and those started meanwhile. Raises the first TransferError.

        Cancelling the wait cancels no read.
        """
        while self._failure is None and (running := [task for task in self._ranges if not task.done()]):
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if self._failure is not None:
            raise self._failure
        for task in self._ranges:
            task.result()
        spans = tuple(sorted(self._spans, key=lambda span: span.start_unix_ns))
        return ReadTotals(sum(span.num_bytes for span in spans), self._busy_s, spans)

    async def failed(self) -> TransferError:
        """Returns as soon as a read has failed, or `give_up` was called."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    @property
    def unsettled(self) -> frozenset[int]:
        """Local blocks that a read may write now or later."""
        pending = [chunk for chunk in self._unsettled if chunk.poll() is PullState.PENDING]
        return frozenset(block for chunk in pending for block in chunk.local_blocks)

    def give_up(self) -> frozenset[int]:
        """Starts nothing more, puts what is unsettled into quarantine and returns its blocks.

        They are reported by `on_settled` in a later turn of the event loop: hand them to `Engine.abandon`
        before the next await. Returns nothing where called before, or where all reads have settled.
        """
        self._fail(TransferError(f"the reads from {self._peer} were given up"))
        for task in self._ranges:
            task.cancel()
        for chunk in self._unsettled:
            chunk.cancel_post()
        parked = {chunk for chunk in self._unsettled if chunk.poll() is PullState.PENDING}
        self._unsettled.clear()
        for chunk in parked:
            self._reader.park(chunk)
        return frozenset(block for chunk in parked for block in chunk.local_blocks)

    def _fail(self, error: TransferError) -> None:
        if self._failure is None:
            self._failure = error
            self._failed.set()

    async def _read_range(self, local: tuple[int, ...], remote: tuple[int, ...], num_tokens: int) -> None:
        step = self._reader.chunk_blocks
        done: list[ReadChunk] = []
        try:
            for first in range(0, len(local), step):
                async with self._slots:
                    if self._failure is not None:
                        return
                    done.append(await self._read(local[first : first + step], remote[first : first + step]))
        except TransferError as error:
            self._fail(error)
            return
        self._busy_s += sum(chunk.seconds for chunk in done)
        num_bytes = sum(chunk.num_bytes for chunk in done)
        self._spans.append(ReadSpan(done[0].start_unix_ns, done[-1].end_unix_ns, num_tokens, num_bytes))

    async def _read(self, local: tuple[int, ...], remote: tuple[int, ...]) -> ReadChunk:
        timeout_s = self._reader.read_timeout_s
        deadline = time.monotonic() + timeout_s
        chunk = ReadChunk(self._peer, local, remote)
        # From here until it has settled the chunk is in the set, whatever becomes of this task.
        self._unsettled.add(chunk)
        posting = chunk.post(self._reader.thread, self._reader.transport)
        # Unlike `wait_for`, `wait` cancels nothing when it times out or is cancelled itself.
        await asyncio.wait({asyncio.wrap_future(posting)}, timeout=timeout_s)
        nap = _FIRST_NAP_S
        while (state := chunk.poll()) is PullState.PENDING:
            if time.monotonic() >= deadline:
                chunk.cancel_post()
                raise TransferTimeoutError(
                    f"the read of {len(local)} blocks from {self._peer} has not settled in {timeout_s} s"
                )
            await asyncio.sleep(nap)
            nap = min(nap * 2, _LONGEST_NAP_S)
        self._unsettled.discard(chunk)
        if state is PullState.FAILED:
            raise chunk.error or TransferError(f"the read from {self._peer} failed")
        return chunk
