"""Numbers that are alike: estimates are kept for bands of them."""

from __future__ import annotations

EXACT = 8
"""Bands are exact up to twice so many, and an eighth wide or less above."""


def band_of(count: int) -> int:
    """The least number of the band that `count`, at least 0, lies in."""
    width = 1 << max(0, count.bit_length() - EXACT.bit_length())
    return count - count % width


def band_up_to(count: int) -> int:
    """The greatest number of the band that `count`, at least 1, lies in, where bands end at round numbers.

    For rows of matrices, which kernels take in tiles: 16 and 17 rows are not alike.
    """
    width = 1 << max(0, (count - 1).bit_length() - EXACT.bit_length())
    return -(-count // width) * width
