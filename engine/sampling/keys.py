"""Keys of counter-based draws: (seed, choice, position, purpose), hashed once with BLAKE2b. No torch."""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum

_UINT64 = (1 << 64) - 1


class Purpose(IntEnum):
    """What a draw is for: two draws at the same position never share randomness.

    TOKEN chooses a token, and a draft where its drafter draws along with the target; ACCEPT says whether a
    draft is accepted, RESIDUAL what comes where none is.
    """

    TOKEN = 0
    ACCEPT = 1
    RESIDUAL = 2


DrawKey = tuple[int, int]
"""Two signed 32-bit halves of a hashed key."""


def draw_key(seed: int, choice: int, position: int, purpose: Purpose) -> DrawKey:
    """Hashes a draw's coordinates. Any Python int is a valid seed; it counts modulo 2**64."""
    packed = struct.pack("<QQQQ", seed & _UINT64, choice, position, purpose)
    first, second = struct.unpack("<ii", hashlib.blake2b(packed, digest_size=8).digest())
    return first, second
