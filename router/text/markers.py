"""Markers in a text that comes in pieces."""

from __future__ import annotations


def held_back(text: str, marker: str) -> int:
    """Characters at the end of `text` that must wait: the beginning of `marker` and white space before it."""
    tail = text[-(len(marker) - 1) :] if len(marker) > 1 else ""
    partial = next((len(tail) - at for at in range(len(tail)) if marker.startswith(tail[at:])), 0)
    rest = text[: len(text) - partial]
    return partial + len(rest) - len(rest.rstrip())
