"""What a worker's process must find in its environment before torch is imported, for it is read only once."""

from __future__ import annotations

from cluster.environment import export

# Some microseconds: within one operator the next parallel region follows at once.
_SPINS = "1000"


def prepare_worker_process(threads: int) -> None:
    """Sets how many threads OpenMP starts, and how they wait for one another.

    All workers of a machine share its cores. A thread that spins at the end of each parallel region, as
    libgomp's do for milliseconds, keeps a core from the worker that has something to compute (libgomp manual,
    OMP_WAIT_POLICY and GOMP_SPINCOUNT).

    Args:
        threads: of each parallel region; Ray would say 1 for whoever reserves no CPU.
    """
    export("OMP_NUM_THREADS", str(threads))
    export("MKL_NUM_THREADS", str(threads))
    export("OMP_WAIT_POLICY", "passive")
    export("GOMP_SPINCOUNT", _SPINS)
