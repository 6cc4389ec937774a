"""The prefill worker: what a Ray actor, or a test, starts, drains and stops."""

from __future__ import annotations

from kvrelay.v1 import worker_pb2
from prefill_worker.servicer import PrefillServicer
from worker.lifecycle import RoleWorker
from worker.runtime import WorkerRuntime


class PrefillWorker(RoleWorker):
    """One prefill worker in this process. See `worker.lifecycle.RoleWorker`."""

    role = worker_pb2.WORKER_ROLE_PREFILL

    def make_servicer(self, runtime: WorkerRuntime) -> PrefillServicer:
        """The servicer of `kvrelay.v1.Prefill`."""
        return PrefillServicer(runtime)
