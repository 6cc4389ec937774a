"""How the weights of whatever drafts are stored."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.models.base import DraftedLM
from engine.ops.cpu.ops import CpuOps
from engine.quantization.registry import PLAIN


def draft_quantization(settings: EngineConfig, model: DraftedLM) -> str:
    """Name in `engine.quantization.registry` for a head or a draft model.

    Where the CPU kernels compute, it is int8 even if the model's weights are not: they are read for each
    draft, and what they guess is verified anyway.

    Args:
        settings: of the model's engine.
        model: that is drafted for.
    """
    if settings.quantization == PLAIN and isinstance(model.shared().ops, CpuOps):
        return "int8"
    return settings.quantization
