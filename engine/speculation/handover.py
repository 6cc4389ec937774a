"""What goes from the worker that computed a context to the one that drafts on behind it. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftFeature:
    """The model's features of the last token of a context, as the drafter of both workers reads them.

    Attributes:
        dtype: "float32" or "bfloat16".
        data: the numbers, one after the other, little endian.
    """

    dtype: str
    data: bytes
