"""Ray as the supervisor uses it: started or attached to, actors made, processes killed on any node."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.actors import ACTOR_CLASSES
from cluster.node_agent import NodeAgent
from cluster.plan import WorkerPlan
from cluster.processes import ProcessId
from cluster.ray_deaths import RayDeaths

_NAMESPACE = "kvrelay"
# No objects are passed through Ray; this is little more than its minimum.
_OBJECT_STORE_BYTES = 100 << 20
_CONNECT_S = 5.0
# Ray's words for it, ray/_private/node.py.
_TOO_SLOW = "timed out during startup"


class RayError(Exception):
    """Ray cannot be started or reached; the message says what to do."""


class RaySlowError(RayError):
    """A local Ray did not start within the time that it gives itself."""


@dataclass(frozen=True, slots=True)
class RayInfo:
    """A connected Ray: address of its control store, and URL of its dashboard (empty: it has none)."""

    address: str
    dashboard_url: str


class RayRuntime:
    """A connection to Ray. Calls that may block say so.

    Args:
        address: of an existing cluster; empty starts a local one.
        dashboard_port: of a local one.
    """

    def __init__(self, address: str, dashboard_port: int | None) -> None:
        self._address = address
        self._dashboard_port = dashboard_port
        self._agents: dict[str, Any] = {}
        self._deaths = RayDeaths("")

    def connect(self) -> RayInfo:
        """Blocks for seconds. Must run in the main thread, with whose end the kernel ends a local Ray.

        Raises RayError, of which RaySlowError may pass.
        """
        _require_listener(self._address)
        # Ray takes SIGTERM for itself, and would end this process in the middle of everything.
        handler = signal.getsignal(signal.SIGTERM)
        try:
            if self._address:
                context = ray.init(
                    address=self._address,
                    namespace=_NAMESPACE,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            else:
                context = ray.init(
                    address="local",
                    namespace=_NAMESPACE,
                    include_dashboard=True,
                    dashboard_host="127.0.0.1",
                    dashboard_port=self._dashboard_port,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        # Ray raises all kinds, a bare Exception too where a node has not started within its 30 s.
        except Exception as error:
            if not self._address and _TOO_SLOW in str(error):
                raise RaySlowError("Ray did not start within its own bound of 30 s") from error
            where = f"at {self._address}" if self._address else "on this machine"
            raise RayError(f"cannot use Ray {where}: {error}") from error
        finally:
            signal.signal(signal.SIGTERM, handler)
        url = f"http://{context.dashboard_url}" if context.dashboard_url else ""
        self._deaths = RayDeaths(url)
        return RayInfo(ray.get_runtime_context().gcs_address, url)

    @property
    def own_node_id(self) -> str:
        """The node that this process is on. After `connect`."""
        return str(ray.get_runtime_context().get_node_id())

    def create_worker(self, plan: WorkerPlan) -> Any:
        """Handle of a new actor for the plan. Raises RayError where its name is taken."""
        actor_class: Any = ray.remote(ACTOR_CLASSES[plan.role])
        try:
            return actor_class.options(
                name=plan.actor_name,
                num_cpus=plan.cpus,
                resources=dict(plan.resources),
                max_restarts=-1,
                scheduling_strategy="SPREAD",
            ).remote(plan)
        except ValueError as error:
            raise RayError(
                f"Ray refuses the actor {plan.actor_name}: {error}; does a deployment named "
                f"{plan.deployment!r} run already? --name gives this one another name"
            ) from error

    @staticmethod
    def restart(actor: Any) -> None:
        """Ends the process of an actor, whatever it is, and has Ray start another."""
        ray.kill(actor, no_restart=False)

    async def kill(self, node_id: str, process: ProcessId) -> bool:
        """SIGKILLs a process on its node. False where it is gone. Raises ray.exceptions.RayError."""
        killed: bool = await self._agent(node_id).kill.remote(process)
        return killed

    async def is_alive(self, node_id: str, process: ProcessId) -> bool:
        """Whether a process lives on its node. Raises ray.exceptions.RayError."""
        alive: bool = await self._agent(node_id).is_alive.remote(process)
        return alive

    async def cause_of_end(self, node_id: str, process: ProcessId) -> str:
        """Why Ray ended a worker process, in words; empty where it did not."""
        return await asyncio.to_thread(self._deaths.cause, node_id, process.pid)

    async def latest_kill(self, since_unix_s: float) -> str:
        """Why Ray ended any worker process since then, in words; empty where it ended none."""
        return await asyncio.to_thread(self._deaths.latest_kill, since_unix_s)

    def abandon(self) -> None:
        """Instead of `disconnect` where a local Ray's servers are gone: ends what is left of it here."""
        self._agents.clear()

    def disconnect(self) -> None:
        """Ends all our actors and a local Ray. Blocks for seconds."""
        self._agents.clear()
        ray.shutdown(wait_for_processes=True)

    def _agent(self, node_id: str) -> Any:
        if node_id not in self._agents:
            agent_class: Any = ray.remote(NodeAgent)
            self._agents[node_id] = agent_class.options(
                num_cpus=0,
                max_restarts=-1,
                # A question asked while the agent restarts is asked again.
                max_task_retries=-1,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            ).remote()
        return self._agents[node_id]

    def prepare_agent(self, node_id: str) -> None:
        """Starts the node's agent ahead of need: a kill should not wait for a process to start."""
        self._agent(node_id)


def _require_listener(address: str) -> None:
    """Ray itself would try for over a minute, and leave its reasons in a log."""
    host, _, port = address.rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError as error:
        raise RayError(f"ray.address: cannot connect to {address}: {error}") from None
