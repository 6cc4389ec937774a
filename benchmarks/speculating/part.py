"""What a part of the benchmark is given and gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.engine_bars import Verdict
from benchmarks.speculating.bench import Loaded
from benchmarks.speculating.workloads import TokenIds
from engine.speculation.config import SpeculationConfig


@dataclass(frozen=True, slots=True)
class Place:
    """Where and on what is measured.

    Attributes:
        loaded: the model.
        head: of the model; None where there is none.
        sets: all prompts, by set.
        tokens: most new ones of each prompt.
        console: progress goes there.
        cache: folder for what is made once.
    """

    loaded: Loaded
    head: SpeculationConfig | None
    sets: dict[str, list[TokenIds]]
    tokens: int
    console: Console
    cache: Path

    def few(self, count: int) -> dict[str, list[TokenIds]]:
        """The sets, each evenly thinned out to `count`."""
        return {
            name: prompts[:: max(1, len(prompts) // count)][:count] for name, prompts in self.sets.items()
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a part found.

    Attributes:
        tables: to be shown.
        verdicts: its bars.
        samples: for other programs, of what JSON can hold.
    """

    tables: tuple[Table, ...]
    verdicts: tuple[Verdict, ...]
    samples: object
