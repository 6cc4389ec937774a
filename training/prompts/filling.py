"""Templates and what their slots are filled with: text files, one entry a line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

_FOLDER = Path(__file__).parent / "templates"
_SLOT = re.compile(r"\{([a-z]+)\d?\}")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_PRICES = (2, 3, 4, 5, 6, 8, 12, 15, 20, 25, 40, 60)
_PERCENTAGES = (5, 10, 15, 20, 25, 30, 40, 50)
# Slots without a file of their own.
_FILLERS: dict[str, Callable[[Random], str]] = {
    "words": lambda rng: ", ".join(rng.sample(entries("word"), rng.randint(4, 7))),
    "n": lambda rng: str(rng.randint(3, 8)),
    "num": lambda rng: str(rng.randint(2, 20)),
    "large": lambda rng: str(rng.randint(21, 400)),
    "price": lambda rng: str(rng.choice(_PRICES)),
    "percent": lambda rng: str(rng.choice(_PERCENTAGES)),
    "year": lambda rng: str(rng.randint(1950, 2023)),
    "day": lambda rng: rng.choice(_DAYS),
}


@cache
def templates(name: str) -> tuple[str, ...]:
    """The lines of `templates/<name>.txt`; an empty one parts groups. Raises FileNotFoundError."""
    return tuple((_FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines())


@cache
def lines_of(name: str) -> tuple[str, ...]:
    """The same, with line ends where a line has backslash and n. Raises FileNotFoundError."""
    return tuple(line.replace("\\n", "\n") for line in templates(name))


def entries(slot: str) -> tuple[str, ...]:
    """What may fill a slot. Raises FileNotFoundError for an unknown one."""
    return templates(f"slots/{slot}")


def fill(template: str, rng: Random, own: Mapping[str, Sequence[str]] | None = None) -> str:
    """Puts something into each `{slot}`; a digit behind a slot's name makes it another one of its kind.

    The same slot named twice is filled alike.

    Args:
        template: with slots or without.
        rng: draws what they are filled with.
        own: by slot, entries instead of its file's.

    Raises:
        FileNotFoundError: an unknown slot.
    """
    filled: dict[str, str] = {}

    def value(match: re.Match[str]) -> str:
        whole, slot = match[0], match[1]
        if whole not in filled:
            choices = own.get(slot) if own else None
            filled[whole] = (
                _FILLERS[slot](rng)
                if slot in _FILLERS and choices is None
                else rng.choice(choices or entries(slot))
            )
        return filled[whole]

    return _SLOT.sub(value, template)
