"""A worker's side of the index: it registers, keeps its lease and publishes stored and evicted blocks."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from prefix_index.connection import IndexConnection
from prefix_index.errors import IndexUnavailableError
from prefix_index.hashing import HASH_BYTES
from prefix_index.scripts import LEAVE, PUBLISH, REGISTER
from prefix_index.sweeper import Sweeper
from telemetry.logs import fields

logger = logging.getLogger(__name__)

_TIMEOUT_S = 1.0
# Changes are gathered so long before they go out; with the trip they arrive within 50 ms.
_GATHER_S = 0.03
_BATCH_BLOCKS = 1024
_HEARTBEATS_PER_LEASE = 3
# However long the lease: a restarted Redis is noticed so soon.
_LONGEST_HEARTBEAT_S = 1.0
_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 1.0
_LEAVE_SWEEP_S = 2.0


class _LeaseLostError(Exception):
    """The lease ended or Redis lost it: what it knew of this worker is void."""


class _FencedError(Exception):
    """A newer process bears this worker's name."""


class RedisIndexPublisher:
    """The IndexPublisher of one worker process. Belongs to the event loop that calls `start`.

    Every registration has an epoch of its own. Whenever it cannot be known whether a batch arrived (time-out,
    broken connection, lost lease), the epoch is given up and a new one begins with a snapshot, so that no
    late command of the old one can change anything. A worker whose successor (a larger incarnation) is
    registered is fenced: it never publishes again.

    Args:
        url: as for RedisPrefixIndex.
        namespace: as for RedisPrefixIndex.
        worker_id: stable name of the worker.
        incarnation: larger for each process that bears the name.
        snapshot: returns the names of all published blocks, parents first. Changes that `publish` is told
            while it runs are merged: for each block the last thing told wins over the snapshot.
        lease_s: life of the registration after the last sign of life; at least three are sent in that time.

    Raises:
        IndexConfigError: the URL or the namespace is malformed.
    """

    def __init__(
        self,
        url: str,
        namespace: str,
        worker_id: str,
        incarnation: int,
        snapshot: Callable[[], Awaitable[Sequence[bytes]]],
        lease_s: float = 3.0,
    ) -> None:
        if lease_s <= 0:
            raise ValueError(f"lease_s must be positive, not {lease_s}")
        self._connection = IndexConnection(url, namespace, _TIMEOUT_S)
        self._sweeper = Sweeper(self._connection)
        self._worker_id = worker_id
        self._incarnation = f"{incarnation:020d}"
        self._snapshot = snapshot
        self._lease_ms = round(lease_s * 1000)
        self._heartbeat_s = min(lease_s / _HEARTBEATS_PER_LEASE, _LONGEST_HEARTBEAT_S)
        self._lock = threading.Lock()
        # Block -> whether it is held. None while changes are dropped, a snapshot being due anyway.
        self._pending: dict[bytes, bool] | None = None
        self._epoch = ""
        self._registered = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        # Held during each command, so that close() never leaves one in flight behind its back.
        self._in_flight = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def registered(self) -> bool:
        """Whether the index knows this worker and everything that was told before the last batch."""
        return self._registered

    async def start(self) -> None:
        """Begins to register. Returns at once, whether or not Redis is there."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run(), name=f"index-publisher-{self._worker_id}")

    def publish(self, stored: Sequence[bytes], evicted: Sequence[bytes]) -> None:
        """Queues changes. A block named in both was evicted first. May be called from any thread."""
        _check_names(stored)
        _check_names(evicted)
        with self._lock:
            if self._pending is None:
                return
            self._pending.update(dict.fromkeys(evicted, False))
            self._pending.update(dict.fromkeys(stored, True))
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: so is this publisher
                self._loop.call_soon_threadsafe(self._wake.set)

    async def close(self) -> None:
        """Gives the lease up, so that the blocks vanish at once, and helps to sweep them."""
        if self._task is not None:
            async with self._in_flight:
                self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None
            self._drop_changes()
            await self._leave()
        await self._sweeper.close()
        await self._connection.close()

    async def _leave(self) -> None:
        if not self._epoch:
            return
        try:
            if await self._connection.run(LEAVE, self._worker_id, self._epoch):
                await self._sweeper.finish(_LEAVE_SWEEP_S)
        except IndexUnavailableError as error:
            # The lease ends by itself.
            logger.warning("could not give up the index lease", extra=fields(error=str(error)))

    async def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            pause_s = 0.0
            try:
                await self._register()
                retry_s = _FIRST_RETRY_S
                await self._keep_up()
            except _LeaseLostError:
                logger.warning("index lease lost, registering anew", extra=fields(worker_id=self._worker_id))
            except _FencedError:
                logger.error(
                    "a newer process has this worker's name, not publishing any more",
                    extra=fields(worker_id=self._worker_id, incarnation=int(self._incarnation)),
                )
                return
            except IndexUnavailableError as error:
                if retry_s == _FIRST_RETRY_S:
                    logger.warning("cannot publish to the prefix index", extra=fields(error=str(error)))
                pause_s = retry_s
                retry_s = min(2 * retry_s, _LAST_RETRY_S)
            except Exception:  # whatever it is, the worker serves on; it must only not be lost in silence
                logger.exception("publishing to the prefix index failed")
                pause_s = _LAST_RETRY_S
            finally:
                self._drop_changes()
            await asyncio.sleep(pause_s)

    async def _register(self) -> None:
        async with self._in_flight:
            await self._connection.ping()  # a snapshot costs the engine: only if Redis is there
        with self._lock:
            self._pending = {}
        held = await self._take_snapshot()
        with self._lock:
            # The new epoch starts empty: of the changes told meanwhile only their outcome counts.
            outcome = {**dict.fromkeys(held, True), **(self._pending or {})}
            self._pending = {name: True for name, is_held in outcome.items() if is_held}
        self._epoch = secrets.token_hex(8)
        async with self._in_flight:
            status, needs_sweep = await self._connection.run(
                REGISTER, self._worker_id, self._epoch, self._incarnation, self._lease_ms
            )
        if status == b"fenced":
            raise _FencedError
        if needs_sweep:
            self._sweeper.notice()
        await self._flush()
        self._registered = True
        logger.info(
            "registered in the prefix index", extra=fields(worker_id=self._worker_id, blocks=len(held))
        )

    async def _take_snapshot(self) -> Sequence[bytes]:
        try:
            held = await self._snapshot()
            _check_names(held)
            return held
        # Whatever the engine's side raises, publishing must be tried again rather than end for good.
        except Exception as error:
            raise IndexUnavailableError(f"no snapshot: {error!r}") from error

    async def _keep_up(self) -> None:
        """Sends changes and signs of life until the lease is lost."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat_s):
                    await self._wake.wait()
                    self._wake.clear()
                    await asyncio.sleep(_GATHER_S)
            await self._flush()

    async def _flush(self) -> None:
        """Sends what is pending, at least one sign of life."""
        while True:
            batch, more = self._take_batch()
            stored = b"".join(name for name, is_held in batch.items() if is_held)
            evicted = b"".join(name for name, is_held in batch.items() if not is_held)
            async with self._in_flight:
                status, needs_sweep = await self._connection.run(
                    PUBLISH, self._worker_id, self._epoch, self._lease_ms, stored, evicted
                )
            if status == b"lost":
                raise _LeaseLostError
            if needs_sweep:
                self._sweeper.notice()
            if not more:
                return

    def _take_batch(self) -> tuple[dict[bytes, bool], bool]:
        with self._lock:
            pending = self._pending or {}
            if len(pending) <= _BATCH_BLOCKS:
                batch = dict(pending)
                pending.clear()
            else:
                names = [name for name, _ in zip(pending, range(_BATCH_BLOCKS), strict=False)]
                batch = {name: pending.pop(name) for name in names}
            return batch, bool(pending)

    def _drop_changes(self) -> None:
        self._registered = False
        with self._lock:
            self._pending = None


def _check_names(names: Sequence[bytes]) -> None:
    if any(len(name) != HASH_BYTES for name in names):
        raise ValueError(f"block names have {HASH_BYTES} bytes")
