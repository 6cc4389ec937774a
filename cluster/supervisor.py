"""Brings a deployment up, keeps it up, and takes it down without leaving a process behind.

Order: embedded Redis (unless a URL is given), Ray, all workers at once, router (unless routers that run
elsewhere are named). Each has a task that watches and restarts it; this module only orders them and writes
the state file.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Sequence

from cluster.embedded_redis import EmbeddedRedisError
from cluster.environment import Environment, export
from cluster.errors import SupervisorError
from cluster.external_routers import ExternalRouters
from cluster.guardian import Guardian
from cluster.leftovers import clean_up_after
from cluster.managed_worker import ManagedWorker, WorkerStartError
from cluster.model_store.store import ModelEntry
from cluster.plan import plan_router, plan_workers, served_name, short_context
from cluster.ports import PortInUseError, require_free
from cluster.processes import INSTANCE_VARIABLE, ProcessId, end_marked, identify, marked_processes
from cluster.ray_runtime import RayError, RayInfo, RayRuntime
from cluster.ray_servers import RayLostError, RayServers
from cluster.ray_start import connect_patiently
from cluster.redis_check import RedisUnusableError, require_answer
from cluster.redis_keeper import RedisKeeper
from cluster.reporting import Reporter
from cluster.router_files import RouterFiles
from cluster.router_process import RouterProcess, RouterStartError
from cluster.routers import Routers
from cluster.spec import DeploymentSpec
from cluster.state import (
    DeploymentState,
    ProcessRecord,
    StateFileError,
    read_state,
    remove_state,
    write_state,
)
from cluster.troubles import Troubles
from cluster.waiting import unless_fails, unless_set
from kvrelay.v1 import worker_pb2
from router.config import RouterConfig

_START_ERRORS = (
    EmbeddedRedisError,
    PortInUseError,
    RayError,
    RayLostError,
    RedisUnusableError,
    RouterStartError,
    StateFileError,
    OSError,
)
_WATCH_S = 0.5
_STOP_WORKER_S = 5.0
_SWEEP_S = 10.0


class Supervisor:
    """One deployment. `start`, then `run`, then `stop`; `stop` also after a failed `start`.

    Args:
        spec: the deployment.
        model: its model, ready to load.
        environment: folders and Python path.
        reporter: told of progress and of restarts.
    """

    def __init__(
        self, spec: DeploymentSpec, model: ModelEntry, environment: Environment, reporter: Reporter
    ) -> None:
        self._spec = spec
        self._model = model
        self._environment = environment
        self._reporter = reporter
        self._instance = f"{spec.name}-{uuid.uuid4()}"
        self._phase = "starting"
        self._log_dir = environment.log_dir / spec.name
        self._runtime = RayRuntime(spec.ray.address, spec.ray.dashboard_port)
        self._ray: RayInfo | None = None
        self._ray_servers: RayServers | None = None
        self._redis: RedisKeeper | None = None
        self._redis_url = spec.redis.url
        self._workers: list[ManagedWorker] = []
        self._router: Routers | None = None
        self._guardian: Guardian | None = None
        self._owns_state = False
        self._unwritten = ""
        self._troubles = Troubles(reporter.note)

    @property
    def state(self) -> DeploymentState:
        """As the state file has it."""
        addresses = self._router.addresses if self._router else None
        return DeploymentState(
            name=self._spec.name,
            instance=self._instance,
            supervisor=_record("supervisor", os.getpid()),
            phase=self._phase,
            served_name=served_name(self._spec, self._model),
            http_url=f"http://{addresses.http}" if addresses and addresses.http else "",
            grpc_address=addresses.grpc if addresses else "",
            admin_address=addresses.admin if addresses else "",
            external_routers=self._spec.router.external,
            redis_url="" if self._spec.redis.url else self._redis_url,
            ray_address=self._ray.address if self._ray else "",
            dashboard_url=self._ray.dashboard_url if self._ray else "",
            api_key_required=bool(self._spec.router.api_key),
            log_dir=self._log_dir,
            troubles={name: why for name, why in self._troubles_now().items() if why},
            processes=tuple(self._processes()),
        )

    async def start(self) -> DeploymentState:
        """Brings everything up. Must run in the main thread's event loop.

        Raises SupervisorError, which says what did not come up; call `stop` then too.
        """
        try:
            return await self._start()
        except _START_ERRORS as error:
            raise SupervisorError(str(error)) from error

    async def _start(self) -> DeploymentState:
        spec = self._spec
        self._claim_name()
        if not spec.router.external:
            require_free(spec.router.host, spec.router.http_port, "router.http_port")
            require_free(spec.router.host, spec.router.grpc_port, "router.grpc_port")
        export(INSTANCE_VARIABLE, self._instance)
        self._guardian = Guardian(self._instance)
        self._save()
        if spec.redis.url:
            self._reporter.begin("Connecting to Redis")
            await asyncio.to_thread(require_answer, spec.redis.url)
        else:
            self._reporter.begin("Starting Redis")
            self._redis = RedisKeeper(
                self._log_dir / "redis.log",
                silence_s=spec.health.silence_s,
                note=self._reporter.note,
                on_change=self._save,
            )
            self._redis_url = await self._redis.start()
        if spec.router.external:
            self._router = ExternalRouters(
                spec.router.external, workers=self._serving, on_change=self._changed
            )
        else:
            self._router = router = self._own_router()
            # Ahead of need: it loads its code while Ray starts.
            await router.launch()
        address = spec.ray.address
        self._reporter.begin(f"Connecting to Ray at {address}" if address else "Starting Ray")
        # Blocks the loop, in the main thread on purpose: see RayRuntime.connect.
        self._ray = connect_patiently(self._runtime, self._instance, self._reporter.note)
        self._save()
        if address:
            await self._start_on_ray()
        else:
            self._ray_servers = RayServers()
            await unless_fails(self._ray_servers.watch(), self._start_on_ray())
        self._phase = "ready"
        self._save()
        return self.state

    async def _start_on_ray(self) -> None:
        await self._start_workers()
        self._require_reachable_redis()
        if note := short_context(self._spec, self._serving()):
            self._reporter.note(note)
        await self._start_router()

    async def run(self, stop: asyncio.Event) -> None:
        """Watches and heals until `stop` is set. Raises SupervisorError once that cannot be done any more."""
        router = self._router
        if router is None:
            raise AssertionError("run before start")
        work = [worker.supervise() for worker in self._workers]
        work += [router.supervise(), self._watch_guardian()]
        if self._redis is not None:
            work.append(self._redis.supervise())
        if self._ray_servers is not None:
            work.append(self._ray_servers.watch())
        tasks = [asyncio.create_task(each) for each in work]
        waiting = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {waiting}:
                # Watching ends only by a defect: better to stop, loudly, than to serve unwatched.
                task.result()
        except RayLostError as error:
            raise SupervisorError(str(error)) from error
        finally:
            for task in (waiting, *tasks):
                task.cancel()
            await asyncio.gather(waiting, *tasks, return_exceptions=True)

    async def stop(self, hurry: asyncio.Event) -> None:
        """Lets running requests end, then ends everything that was started here.

        Args:
            hurry: once set, requests are not waited for any longer.
        """
        self._phase = "stopping"
        if self._guardian is None:
            # Nothing was started.
            return
        self._save()
        if self._router is not None:
            self._reporter.begin("Stopping: waiting for running requests")
            await unless_set(hurry, self._router.stop(self._spec.health.drain_timeout_s + 5.0))
            await unless_set(hurry, self._drain_workers())
            await self._router.stop(0.0 if hurry.is_set() else 5.0)
            self._router.clean_up()
        self._reporter.begin("Stopping workers, Ray and Redis")
        # Now, while parents still tell whose children they are.
        known = await asyncio.to_thread(marked_processes, self._instance)
        if self._ray_servers is not None and self._ray_servers.lost:
            # Nobody there can be asked for anything; what is left of it is swept up below.
            self._runtime.abandon()
        else:
            await asyncio.gather(*(worker.stop(_STOP_WORKER_S) for worker in self._workers))
            if self._ray is not None:
                self._runtime.disconnect()
        if self._redis is not None:
            await self._redis.stop()
        await self._sweep(self._guardian, known)
        try:
            remove_state(self._environment.run_dir, self._spec.name)
        except OSError as error:
            self._reporter.note(f"the state file cannot be removed: {error}")

    async def _sweep(self, guardian: Guardian, known: Sequence[ProcessId]) -> None:
        """What Ray left running is ended here; the guardian would do so only after our death."""
        survivors = await asyncio.to_thread(end_marked, self._instance, _SWEEP_S, known)
        if survivors:
            pids = ", ".join(str(process.pid) for process in survivors)
            self._reporter.note(f"these processes could not be ended: {pids}")
        guardian.dismiss()

    def _claim_name(self) -> None:
        run_dir, name = self._environment.run_dir, self._spec.name
        state = read_state(run_dir, name)
        if state is not None and state.alive:
            raise SupervisorError(
                f"a deployment named {name!r} runs already (pid {state.supervisor.pid}); "
                f"`kvrelay down --name {name}` ends it, --name gives this one another name"
            )
        if state is not None:
            clean_up_after(run_dir, state)
        self._owns_state = True

    async def _start_workers(self) -> None:
        plans = plan_workers(
            self._spec, self._model, self._redis_url, self._environment.kernel_dir, self._log_dir
        )
        self._workers = [
            ManagedWorker(plan, self._runtime, self._spec.health, self._changed) for plan in plans
        ]
        count = f"{self._spec.prefill.replicas} prefill, {self._spec.decode.replicas} decode"
        self._reporter.begin(f"Loading the model into workers ({count})")
        starting = {asyncio.create_task(worker.start()): worker for worker in self._workers}
        try:
            await asyncio.gather(*starting)
        except WorkerStartError:
            # Others may be about to fail for the same reason: name all that did by now.
            failed = [
                f"{worker.plan.worker_id}: {task.exception()}"
                for task, worker in starting.items()
                if task.done() and not task.cancelled() and task.exception()
            ]
            raise SupervisorError("\n".join(failed)) from None
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)

    def _require_reachable_redis(self) -> None:
        """The embedded server is on the loopback address: without this, far workers' blocks go unseen."""
        here = self._runtime.own_node_id
        far = [w.plan.worker_id for w in self._workers if w.started is not None and w.started.node_id != here]
        if self._redis is not None and far:
            raise SupervisorError(
                f"redis.url: {', '.join(far)} run on other machines, which cannot reach the embedded Redis; "
                "name a Redis that they reach"
            )

    async def _start_router(self) -> None:
        if self._router is None:
            raise AssertionError("routers are named or launched first")
        if len(self._serving()) < len(self._workers):
            raise SupervisorError("a worker was lost while the deployment started")
        external = self._spec.router.external
        self._reporter.begin(
            f"Looking for routers at {', '.join(external)}" if external else "Starting the router"
        )
        await self._router.start()

    def _own_router(self) -> RouterProcess:
        files = RouterFiles.of(self._environment.run_dir, self._spec.name)

        def configure() -> RouterConfig:
            return plan_router(
                self._spec,
                self._model,
                self._serving(),
                redis_url=self._redis_url,
                addresses_file=files.addresses,
            )

        return RouterProcess(
            configure,
            files=files,
            log_path=self._log_dir / "router.log",
            python_path=self._environment.import_path,
            workers=self._serving,
            on_change=self._changed,
        )

    def _serving(self) -> list[worker_pb2.WorkerInfo]:
        return [worker.info for worker in self._workers if worker.info is not None]

    async def _drain_workers(self) -> None:
        timeout_s = self._spec.health.drain_timeout_s
        await asyncio.gather(*(worker.drain(timeout_s) for worker in self._workers))

    async def _watch_guardian(self) -> None:
        """Restarts the guardian when it dies."""
        while True:
            await asyncio.sleep(_WATCH_S)
            if self._guardian is not None and not self._guardian.running:
                self._guardian = Guardian(self._instance)
                self._save()

    def _changed(self) -> None:
        """A worker or the router came or went."""
        if self._router is not None:
            self._router.workers_changed()
        self._save()
        # Routers that run elsewhere are for others to restart.
        elsewhere = "router" if self._spec.router.external else ""
        self._troubles.are(self._troubles_now(), told=self._phase == "ready", left_alone=elsewhere)

    def _troubles_now(self) -> dict[str, str]:
        """Of every part that may have some; empty where it serves."""
        troubles = {worker.plan.worker_id: worker.trouble for worker in self._workers}
        if self._router is not None:
            troubles["router"] = self._router.trouble
        return troubles

    def _save(self) -> None:
        """Writes the state file. Raises OSError while starting; later a full disk must end nothing."""
        if not self._owns_state:
            return
        try:
            write_state(self._environment.run_dir, self.state)
            self._unwritten = ""
        except OSError as error:
            if self._phase == "starting":
                raise
            if self._unwritten != str(error):
                self._unwritten = str(error)
                self._reporter.note(f"the state file is out of date: it cannot be written: {error}")

    def _processes(self) -> Sequence[ProcessRecord]:
        found: list[ProcessRecord] = []
        if self._guardian is not None:
            found.append(_record("guardian", self._guardian.pid))
        if self._redis is not None and self._redis.server is not None:
            found.append(_record("redis", self._redis.server.pid))
        if self._router is not None and (router := self._router.process) is not None:
            found.append(ProcessRecord(name="router", pid=router.pid, start_ticks=router.start_ticks))
        for worker in self._workers:
            if worker.info is not None and worker.started is not None:
                process = worker.started.process
                found.append(
                    ProcessRecord(
                        name=worker.plan.worker_id,
                        pid=process.pid,
                        start_ticks=process.start_ticks,
                        node_id=worker.started.node_id if self._spec.ray.address else "",
                    )
                )
        return found


def _record(name: str, pid: int) -> ProcessRecord:
    process = identify(pid)
    return ProcessRecord(name=name, pid=pid, start_ticks=process.start_ticks if process else 0)
