"""The type in which a device multiplies matrices fastest."""

from __future__ import annotations

import torch

_EMULATED = ("DEFAULT", "AVX2")
"""CPUs where a bf16 product takes several times as long as one in fp32."""


def product_dtype(device: str) -> torch.dtype:
    """bf16, and fp32 on CPUs without AVX-512, which only emulate bf16."""
    on_cpu = torch.device(device).type == "cpu"
    slow = on_cpu and torch.backends.cpu.get_cpu_capability() in _EMULATED
    return torch.float32 if slow else torch.bfloat16
