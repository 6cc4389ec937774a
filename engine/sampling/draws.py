"""Counter-based random draws: a pure function of what is drawn, never of when or beside whom.

A draw is keyed by (seed, choice, position, purpose) and made for each candidate token id. The key is
hashed once with BLAKE2b; candidates are then mixed with it, two rounds of a bijective 32-bit mixer
(multiply and xor-shift, constants of "lowbias32" by C. Wellons, public domain), vectorised. No generator
state exists, so the same key gives the same draw in any batch, on any worker and after any failover.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

import torch

_UINT64 = (1 << 64) - 1


class Purpose(IntEnum):
    """What a draw is for: two draws at the same position never share randomness."""

    TOKEN = 0


@dataclass(frozen=True, slots=True)
class DrawKey:
    """Two signed 32-bit halves of the hashed key."""

    first: int
    second: int


def draw_key(seed: int, choice: int, position: int, purpose: Purpose) -> DrawKey:
    """Hashes a draw's coordinates. Any Python int is a valid seed; it counts modulo 2**64."""
    packed = struct.pack("<QQQQ", seed & _UINT64, choice, position, purpose)
    first, second = struct.unpack("<ii", hashlib.blake2b(packed, digest_size=8).digest())
    return DrawKey(first, second)


def _mix(value: torch.Tensor) -> torch.Tensor:
    """Bijective mixer of int32. Torch shifts arithmetically, hence the masks."""
    value = value ^ ((value >> 16) & 0xFFFF)
    value = value * 0x7FEB352D
    value = value ^ ((value >> 15) & 0x1FFFF)
    value = value * (0x846CA68B - (1 << 32))
    return value ^ ((value >> 16) & 0xFFFF)


def uniforms(key: DrawKey, token_ids: torch.Tensor) -> torch.Tensor:
    """Uniform draws in (0, 1), one for each candidate.

    Args:
        key: from `draw_key`.
        token_ids: [N] int32 or int64 ids below 2**31.

    Returns:
        [N] fp32. Resolution is 2**-31 near 0, where the exponential draws that win come from.
    """
    bits = _mix(_mix(token_ids.to(torch.int32) ^ key.first) ^ key.second) & 0x7FFFFFFF
    return ((bits.to(torch.float32) + 0.5) * 2.0**-31).clamp_(max=1.0 - 2.0**-24)


def exponentials(key: DrawKey, token_ids: torch.Tensor) -> torch.Tensor:
    """Exponential draws of rate 1, [N] fp32, all positive and finite; arguments as `uniforms`."""
    return -torch.log1p(-uniforms(key, token_ids))
