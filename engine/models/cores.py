"""Who computes on the cores: the kernels' threads, or torch's."""

from __future__ import annotations

import torch

from engine.models.base import DraftedLM
from engine.models.decoder import Decoder
from engine.ops.cpu.ops import CpuOps


def leave_cores_to_kernels(model: DraftedLM) -> None:
    """Has torch compute with one thread where the kernels do what takes time.

    What is left to torch beside them, such as draws over a vocabulary, are many operations of some
    microseconds each. To wake a thread for its half of one takes ten times as long as the operation, and
    where threads spin instead of sleeping they keep the kernels' from the cores.

    For the calling thread and those that use torch for the first time later on; not for others.
    """
    if isinstance(model, Decoder) and isinstance(model.shared().ops, CpuOps):
        torch.set_num_threads(1)
