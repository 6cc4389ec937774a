"""How long work reports itself to whoever shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called now and then while a model is fetched or converted, from the calling thread."""

    def __call__(self, message: str, fraction: float | None = None) -> None:
        """`message` names the stage; `fraction` is what is done of it, 0 to 1, None where unknown."""
        ...


def silent(message: str, fraction: float | None = None) -> None:
    """Shows nothing."""
