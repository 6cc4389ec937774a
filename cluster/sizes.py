"""Amounts of memory as people write them: "512MiB", "1.5GiB"."""

from __future__ import annotations

import re
from fractions import Fraction

# More than any machine has, and less than what the counters of bytes hold.
MAX_SIZE = 1 << 50
_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
SIZE_HELP = "a size such as 512MiB or 1.5GiB (B, KB, MB, GB, KiB, MiB, GiB)"


def parse_size(text: str) -> int:
    """Bytes. Raises ValueError naming what is allowed."""
    match = _SIZE.fullmatch(text)
    unit = match.group(2).upper() if match else None
    if match is None or unit not in _UNITS:
        raise ValueError(f"needs {SIZE_HELP}")
    size = int(Fraction(match.group(1)) * _UNITS[unit])
    if size > MAX_SIZE:
        raise ValueError(f"needs a size of at most {MAX_SIZE >> 30} GiB")
    return size


def format_size(num_bytes: float) -> str:
    """At most one decimal, binary units: "1.5 GiB"."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"
