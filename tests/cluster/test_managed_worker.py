from __future__ import annotations

import asyncio
from typing import Any

import pytest
import ray.exceptions

from cluster.actors import ActorProcess, StartedWorker
from cluster.managed_worker import ManagedWorker
from cluster.processes import ProcessId
from cluster.spec import HealthSpec
from kvrelay.v1 import worker_pb2

WAIT_S = 20.0
OUT_OF_MEMORY = "killed by Ray's memory monitor"


class Method:
    """An actor's method, as Ray's handles have it: called in this process."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def remote(self, *args: object) -> Any:
        return asyncio.ensure_future(self._call(*args))


class Actor:
    """The handle of an actor whose process lives on while its worker fails to start."""

    def __init__(self, failures: int) -> None:
        self.process = Method(self._process)
        self.start = Method(self._start)
        self.pid = 1
        self.failures = failures

    async def _process(self) -> ActorProcess:
        return ActorProcess(ProcessId(self.pid, 1), "node")

    async def _start(self) -> StartedWorker:
        if self.pid > 1 and self.failures:
            self.failures -= 1
            cause = ValueError("out of memory")
            raise ray.exceptions.RayTaskError("start", "traceback", cause)
        info = worker_pb2.WorkerInfo(worker_id="decode-0", incarnation=self.pid, endpoint="127.0.0.1:1")
        return StartedWorker(info.SerializeToString(), ProcessId(self.pid, 1), "node")


class HungActor(Actor):
    """One whose first process hangs while it starts: after it said who it is, or before.

    As in Ray, a call to a process that is killed fails, and another process comes.
    """

    def __init__(self, says_who: bool) -> None:
        super().__init__(failures=0)
        self.says_who = says_who
        self._killed = asyncio.Event()

    async def _process(self) -> ActorProcess:
        if self.pid == 1 and not self.says_who:
            await self._killed.wait()
        return await super()._process()

    async def _start(self) -> StartedWorker:
        if self.pid == 1:
            await self._killed.wait()
            raise ray.exceptions.ActorUnavailableError("killed", None)
        return await super()._start()

    def replace(self) -> None:
        self.pid += 1
        self._killed.set()


class HungRuntime:
    """Ray's side of it: remembers what it is told to end."""

    def __init__(self, actor: HungActor) -> None:
        self.actor = actor
        self.killed: list[ProcessId] = []
        self.restarts = 0

    def create_worker(self, plan: object) -> Actor:
        return self.actor

    def prepare_agent(self, node_id: str) -> None:
        return

    async def kill(self, node_id: str, process: ProcessId) -> bool:
        self.killed.append(process)
        self.actor.replace()
        return True

    async def cause_of_end(self, node_id: str, process: ProcessId) -> str:
        return ""

    async def latest_kill(self, since_unix_s: float) -> str:
        return "" if self.actor.says_who else OUT_OF_MEMORY

    def restart(self, actor: HungActor) -> None:
        self.restarts += 1
        actor.replace()


class Runtime:
    """Ray's side of one worker, whose first process is gone as soon as it is looked at."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    def create_worker(self, plan: object) -> Actor:
        return self.actor

    def prepare_agent(self, node_id: str) -> None:
        return

    async def is_alive(self, node_id: str, process: ProcessId) -> bool:
        self.actor.pid = 2
        return process.pid == 2

    async def kill(self, node_id: str, process: ProcessId) -> bool:
        return False

    async def cause_of_end(self, node_id: str, process: ProcessId) -> str:
        return OUT_OF_MEMORY if process.pid == 1 else ""


async def test_a_worker_whose_process_lives_is_started_again_after_a_failure() -> None:
    actor = Actor(failures=1)
    health = HealthSpec(start_timeout_s=5.0)
    plan: Any = type("Plan", (), {"worker_id": "decode-0"})
    runtime: Any = Runtime(actor)
    told: list[str] = []
    worker = ManagedWorker(plan, runtime, health, lambda: told.append(worker.trouble))
    await worker.start()
    supervising = asyncio.create_task(worker.supervise())
    try:
        async with asyncio.timeout(WAIT_S):
            while worker.restarts == 0:  # noqa: ASYNC110 - what is watched has no event
                await asyncio.sleep(0.01)
        assert actor.failures == 0
        assert worker.info is not None
        assert worker.info.incarnation == 2
        # First that it is gone, then why.
        assert told[:3] == ["", "the process ended", f"the process ended: {OUT_OF_MEMORY}"]
    finally:
        supervising.cancel()
        await asyncio.gather(supervising, return_exceptions=True)


@pytest.mark.parametrize("says_who", [True, False])
async def test_a_start_that_hangs_is_ended_and_asked_of_a_new_process(says_who: bool) -> None:
    actor = HungActor(says_who)
    runtime = HungRuntime(actor)
    plan: Any = type("Plan", (), {"worker_id": "decode-0"})
    told: list[str] = []
    stub: Any = runtime
    worker = ManagedWorker(plan, stub, HealthSpec(start_timeout_s=0.2), lambda: told.append(worker.trouble))
    async with asyncio.timeout(WAIT_S):
        await worker.start()
    why = "" if says_who else f": {OUT_OF_MEMORY}"
    assert told == [f"did not start within 0.2 s{why}", ""]
    assert worker.started is not None
    assert worker.started.process.pid == 2
    assert runtime.killed == ([ProcessId(1, 1)] if says_who else [])
    assert runtime.restarts == (0 if says_who else 1)
