"""The workers that this router may use. Written by the supervisor through `RouterAdmin.SetWorkers` alone."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable

from kvrelay.v1 import router_pb2, worker_pb2
from prefix_index.hashing import HASH_VERSION, ChainHasher, hash_model
from router.worker_link import WorkerLink
from telemetry.logs import fields

_logger = logging.getLogger(__name__)


class WorkerTable:
    """Links by worker id, for the newest table that was set.

    All workers in use serve one revision of one model, which the router learns from them: the one in use for
    as long as the table names a worker that has it, then the one that most workers have. So while a
    deployment moves to another revision, the new workers are refused until the last of the old is gone.

    Args:
        router_id: this router's name.
        heartbeat_timeout_s: silence after which a worker counts as lost.
        block_size: tokens in a KV block; a worker with another is refused.
    """

    def __init__(self, router_id: str, heartbeat_timeout_s: float, block_size: int) -> None:
        self._router_id = router_id
        self._timeout_s = heartbeat_timeout_s
        self._hasher = ChainHasher("", block_size)
        self._hash_model = ""
        self._version = 0
        self._links: dict[str, WorkerLink] = {}
        self._changed = asyncio.Event()

    @property
    def hash_model(self) -> str:
        """Model and revision of the workers in use; empty before the first."""
        return self._hash_model

    @property
    def hasher(self) -> ChainHasher:
        """Names blocks as the workers in use do. Another object once they do it otherwise."""
        return self._hasher

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
        self._learn_model(table.workers)
        old = self._links
        self._links = {}
        for info in table.workers:
            link = old.get(info.worker_id)
            if link is not None and _process_of(link.info) == _process_of(info):
                link.refusal = self._refusal(info)
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

    def _learn_model(self, workers: Iterable[worker_pb2.WorkerInfo]) -> None:
        counts = Counter(_model_of(info) for info in workers if not self._hash_refusal(info))
        if not counts or self._hash_model in counts:
            return
        # By name where counts are equal, so that routers which start at the same moment agree.
        self._hash_model = min(counts, key=lambda model: (-counts[model], model))
        self._hasher = ChainHasher(self._hash_model, self._hasher.block_size)
        _logger.info("serving model", extra=fields(hash_model=self._hash_model))

    def _refusal(self, info: worker_pb2.WorkerInfo) -> str:
        """Why the names that this router gives to blocks would not be the worker's; empty where they are."""
        if refusal := self._hash_refusal(info):
            return refusal
        if _model_of(info) != self._hash_model:
            return f"it serves {_model_of(info)}, the workers in use {self._hash_model}"
        return ""

    def _hash_refusal(self, info: worker_pb2.WorkerInfo) -> str:
        block_size = self._hasher.block_size
        if info.identity.block_size != block_size:
            return f"its blocks hold {info.identity.block_size} tokens, the router's {block_size}"
        if info.identity.hash_version != HASH_VERSION:
            return f"its block hash has version {info.identity.hash_version}, the router's {HASH_VERSION}"
        return ""

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _model_of(info: worker_pb2.WorkerInfo) -> str:
    return hash_model(info.identity.model, info.identity.revision)


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
