"""The type in which a device multiplies matrices fastest."""

from __future__ import annotations

import torch


def product_dtype(device: str) -> torch.dtype:
    """bf16; fp32 on CPUs without instructions for bf16, where a product in it takes several times as long."""
    if torch.device(device).type != "cpu":
        return torch.bfloat16
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if fast else torch.float32
