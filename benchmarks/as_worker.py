"""Imported first by what runs an engine in its own process: threads wait here as they do in a worker.

OpenMP is told so before torch is imported, or never. Where its threads spin behind each parallel region, as
they do by default, they keep our kernels' threads from the cores: a pass then takes longer than where it is
served, most of all one over drafts.
"""

from __future__ import annotations

from cluster.cores import usable_cores
from cluster.worker_environment import prepare_worker_process

prepare_worker_process(usable_cores())
