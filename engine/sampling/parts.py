"""Rows that are drawn together, and what of them is the same in every step: it is made once.

As long as a batch consists of the same sequences its steps draw for the same rows with the same parameters.
Rows are compared by their rules, which belong to one sequence and never change their parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.sampling.rules import TokenRules
from engine.sampling.truncation import Limits, limits_of


@dataclass(frozen=True, slots=True)
class DrawnPart:
    """n of the rows to draw for, few enough that working on them fits a core's cache.

    Attributes:
        places: among the rows to draw for.
        index: the same, [n] int64.
        rows: of the logits, [n] int64.
        temperatures: [n, 1] fp32.
        limits: what truncation cuts off; None where nothing is.
    """

    places: tuple[int, ...]
    index: torch.Tensor
    rows: torch.Tensor
    temperatures: torch.Tensor
    limits: Limits | None


@dataclass(frozen=True, slots=True)
class _Draw:
    """One draw of a step. The lists are not changed by those who gave them."""

    rows: list[int]
    rules: list[TokenRules]
    vocab_size: int
    device: torch.device
    parts: tuple[DrawnPart, ...]


class PartsOfSteps:
    """The parts of each draw of a step, kept for the next step.

    Args:
        chunk_elements: most elements of [n, vocab] in one part.
    """

    def __init__(self, chunk_elements: int) -> None:
        self._chunk_elements = chunk_elements
        self._draws: list[_Draw] = []
        self._next = 0

    def begin(self) -> None:
        """A new step: its first draw is compared with the first one of the step before, and so on."""
        # What that step had no use for belongs to sequences that may be gone.
        del self._draws[self._next :]
        self._next = 0

    def of(self, rows: list[int], rules: list[TokenRules], logits: torch.Tensor) -> tuple[DrawnPart, ...]:
        """The parts of the step's next draw: every row in one of them, whole distributions first.

        Args:
            rows: of `logits`, to draw for.
            rules: one for each of `rows`.
            logits: [R, vocab].
        """
        at = self._next
        self._next += 1
        if at < len(self._draws):
            known = self._draws[at]
            # Rules have no equality of their own: these are comparisons of addresses.
            if (
                known.rows == rows
                and known.rules == rules
                and known.vocab_size == logits.shape[1]
                and known.device == logits.device
            ):
                return known.parts
        parts = self._make(rows, rules, logits)
        self._draws[at : at + 1] = [_Draw(rows, rules, logits.shape[1], logits.device, parts)]
        return parts

    def _make(self, rows: list[int], rules: list[TokenRules], logits: torch.Tensor) -> tuple[DrawnPart, ...]:
        vocab_size, device = logits.shape[1], logits.device
        size = max(1, self._chunk_elements // vocab_size)
        parts: list[DrawnPart] = []
        for truncated in (False, True):
            group = [place for place, rule in enumerate(rules) if rule.truncates is truncated]
            for start in range(0, len(group), size):
                places = tuple(group[start : start + size])
                params = [rules[place].params for place in places]
                parts.append(
                    DrawnPart(
                        places=places,
                        index=torch.tensor(places, device=device),
                        rows=torch.tensor([rows[place] for place in places], device=device),
                        temperatures=torch.tensor([p.temperature for p in params], device=device)[:, None],
                        limits=limits_of(params, vocab_size, device) if truncated else None,
                    )
                )
        return tuple(parts)
