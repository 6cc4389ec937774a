"""How the supervisor tells what it does."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Shows what is going on to whoever started this."""

    def begin(self, step: str) -> None:
        """A step that may take a while begins; the one before is done."""
        ...

    def note(self, text: str) -> None:
        """Something that the user should know."""
        ...
