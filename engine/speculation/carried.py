"""A feature of the target on its way to the worker that decodes on."""

from __future__ import annotations

import torch


def pack_feature(feature: torch.Tensor) -> bytes:
    """The bytes of a feature [width]."""
    return bytes(feature.cpu().contiguous().view(torch.uint8).numpy().tobytes())


def unpack_feature(carried: bytes, width: int, like: torch.Tensor) -> torch.Tensor:
    """The feature, [width], in the type of `like` and on its device. Raises ValueError for another size."""
    wanted = width * like.element_size()
    if len(carried) != wanted:
        raise ValueError(f"a feature of {len(carried)} bytes, where {wanted} are read")
    return torch.frombuffer(bytearray(carried), dtype=like.dtype).to(like.device)
