"""Bars that a benchmark must reach: collected while it runs, judged at its end."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape


@dataclass(slots=True)
class Bars:
    """Says at the end which bars were missed."""

    missed: list[str] = field(default_factory=list)

    def require(self, holds: bool, statement: str) -> None:
        """Notes a statement that must be true."""
        if not holds:
            self.missed.append(statement)

    def exit(self) -> None:
        """Prints the verdict and ends the process: 0 when all hold, 1 otherwise."""
        console = Console()
        for statement in self.missed:
            console.print(f"[red]missed[/red]: {escape(statement)}")
        if not self.missed:
            console.print("[green]all bars reached[/green]")
        raise SystemExit(1 if self.missed else 0)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median with least and greatest value of several samples."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Summarises at least one sample."""
        return cls(statistics.median(samples), min(samples), max(samples))

    def text(self, scale: float = 1.0, digits: int = 1) -> str:
        """`median [least .. greatest]`, each multiplied by `scale`."""
        median, least, greatest = (
            f"{value * scale:.{digits}f}" for value in (self.median, self.least, self.greatest)
        )
        return f"{median} [{least} .. {greatest}]"
