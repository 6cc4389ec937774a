"""Puts the router's core together, for the process that adds the front doors."""

from __future__ import annotations

import secrets

from prefix_index.index import PrefixIndex
from router.admin import RouterAdmin
from router.config import RouterConfig
from router.dispatch import ClusterDispatcher
from router.index_gate import IndexGate
from router.metrics import RouterMetrics
from router.policies.base import PolicySettings
from router.policies.registry import create_policy
from router.worker_table import WorkerTable


class RouterCore:
    """Everything below the front doors. Belongs to one event loop; made inside it.

    Attributes:
        dispatcher: what the doors ask.
        admin: servicer of `kvrelay.v1.RouterAdmin`, for a server of its own.
        metrics: holds the Prometheus registry.
        table: the workers.

    Args:
        config: the router's settings.
        index: the prefix index, closed with the core; None routes by load alone.

    Raises:
        ValueError: no policy has that name.
    """

    def __init__(self, config: RouterConfig, index: PrefixIndex | None) -> None:
        policy = create_policy(
            config.policy,
            PolicySettings(
                local_prefill_tokens=config.local_prefill_tokens,
                force_remote_prefill=config.force_remote_prefill,
            ),
        )
        self.metrics = RouterMetrics()
        # Workers keep the requests of a router whose stream broke for its return: a process that bears the
        # name of a dead one must not keep them alive.
        session_name = f"{config.router_id}/{secrets.token_hex(4)}"
        self.table = WorkerTable(session_name, config.heartbeat_timeout_s, config.block_size)
        self._gate = IndexGate(index, self.metrics)
        self.dispatcher = ClusterDispatcher(config, self.table, self._gate, policy, self.metrics)
        self.admin = RouterAdmin(config.router_id, self.table, self.dispatcher, self._gate, self.metrics)

    async def start(self) -> None:
        """Asks the index for the first time; workers come with `SetWorkers`."""
        await self._gate.start()

    async def close(self) -> None:
        """Ends everything. Generations must have ended; those left fail as if all workers were lost."""
        await self.dispatcher.close()
        await self.table.close()
        await self._gate.close()
