"""The decode worker: what a Ray actor, or a test, starts, drains and stops."""

from __future__ import annotations

from decode_worker.servicer import DecodeServicer
from kvrelay.v1 import worker_pb2
from worker.lifecycle import RoleWorker
from worker.runtime import WorkerRuntime


class DecodeWorker(RoleWorker):
    """One decode worker in this process. See `worker.lifecycle.RoleWorker`."""

    role = worker_pb2.WORKER_ROLE_DECODE

    def make_servicer(self, runtime: WorkerRuntime) -> DecodeServicer:
        """The servicer of `kvrelay.v1.Decode`."""
        return DecodeServicer(runtime)
