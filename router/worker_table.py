"""The workers that this router may use. Written by the supervisor through `RouterAdmin.SetWorkers` alone."""

from __future__ import annotations

import asyncio
import logging

from kvrelay.v1 import router_pb2, worker_pb2
from prefix_index.hashing import HASH_VERSION
from router.worker_link import WorkerLink
from telemetry.logs import fields

_logger = logging.getLogger(__name__)


class WorkerTable:
    """Links by worker id, for the newest table that was set.

    Args:
        router_id: this router's name.
        heartbeat_timeout_s: silence after which a worker counts as lost.
        block_size: tokens in a KV block; a worker with another is refused.
    """

    def __init__(self, router_id: str, heartbeat_timeout_s: float, block_size: int) -> None:
        self._router_id = router_id
        self._timeout_s = heartbeat_timeout_s
        self._block_size = block_size
        self._version = 0
        self._links: dict[str, WorkerLink] = {}
        self._changed = asyncio.Event()

    @property
    def links(self) -> list[WorkerLink]:
        """All of them, in the order of their names."""
        return [self._links[worker_id] for worker_id in sorted(self._links)]

    def get(self, worker_id: str) -> WorkerLink | None:
        """The link to a worker's present process."""
        return self._links.get(worker_id)

    async def set_workers(self, table: router_pb2.WorkerTable) -> bool:
        """Replaces the table; returns False for one that is older than the last.

        A worker that is named as before keeps its link. Another incarnation, endpoint or role is another
        process: the old link is closed and its requests go elsewhere.

        Raises:
            ValueError: a worker without id, endpoint or role, or one that is named twice; nothing changes.
        """
        _check(table)
        if table.version < self._version:
            return False
        self._version = table.version
        old = self._links
        self._links = {}
        for info in table.workers:
            link = old.get(info.worker_id)
            if link is not None and _process_of(link.info) == _process_of(info):
                self._links[info.worker_id] = old.pop(info.worker_id)
            else:
                self._links[info.worker_id] = self._open(info)
        self._notify()
        await asyncio.gather(*(link.close() for link in old.values()))
        return True

    async def wait_change(self, timeout_s: float) -> None:
        """Returns when a worker came, went or changed its health, or after `timeout_s`."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Closes all links."""
        links, self._links = self._links, {}
        await asyncio.gather(*(link.close() for link in links.values()))

    def _open(self, info: worker_pb2.WorkerInfo) -> WorkerLink:
        refusal = self._refusal(info)
        about = fields(
            worker_id=info.worker_id, incarnation=info.incarnation, endpoint=info.endpoint, reason=refusal
        )
        if refusal:
            _logger.error("worker refused", extra=about)
        else:
            _logger.info("worker added", extra=about)
        link = WorkerLink(
            info,
            router_id=self._router_id,
            heartbeat_timeout_s=self._timeout_s,
            refusal=refusal,
            on_change=self._notify,
        )
        link.start()
        return link

    def _refusal(self, info: worker_pb2.WorkerInfo) -> str:
        """Why the names that this router gives to blocks would not be the worker's; empty where they are."""
        if info.identity.block_size != self._block_size:
            return f"its blocks hold {info.identity.block_size} tokens, the router's {self._block_size}"
        if info.identity.hash_version != HASH_VERSION:
            return f"its block hash has version {info.identity.hash_version}, the router's {HASH_VERSION}"
        return ""

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _process_of(info: worker_pb2.WorkerInfo) -> tuple[int, str, int]:
    return info.incarnation, info.endpoint, info.role


def _check(table: router_pb2.WorkerTable) -> None:
    seen: set[str] = set()
    for info in table.workers:
        if not info.worker_id or not info.endpoint:
            raise ValueError("a worker of the table has no worker_id or no endpoint")
        if info.role not in (worker_pb2.WORKER_ROLE_PREFILL, worker_pb2.WORKER_ROLE_DECODE):
            raise ValueError(f"worker {info.worker_id} has no role")
        if info.worker_id in seen:
            raise ValueError(f"worker {info.worker_id} is named twice")
        seen.add(info.worker_id)
