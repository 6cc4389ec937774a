"""What is to be expected of each drafter's guesses: how often there are any, and how many are right.

Requests of one batch may draft with different drafters, and what one has shown says nothing of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from engine.sequence import Sequence as EngineSequence
from engine.speculation.acceptance import AcceptanceModel, Floats
from engine.speculation.availability import Availability


class _Learnt:
    """Of one drafter."""

    def __init__(self, acceptance: AcceptanceModel) -> None:
        self.acceptance = acceptance
        self.availability = Availability()


class Outlook:
    """Learns of each sequence's drafts what those of the same drafter will be like.

    Args:
        new_model: makes a model of right drafts that knows nothing yet.
    """

    def __init__(self, new_model: Callable[[], AcceptanceModel]) -> None:
        self._new_model = new_model
        self._learnt: dict[object, _Learnt] = {}

    def chances(self, sequences: Sequence[EngineSequence], most: int) -> Floats:
        """[len(sequences), most]. As `Availability.chances`."""
        return self._gathered(sequences, lambda own, requests: own.availability.chances(requests, most))

    def gains(self, sequences: Sequence[EngineSequence], most: int, *, sigmas: float = 0.0) -> Floats:
        """[len(sequences), most]. As `AcceptanceModel.gains`."""
        return self._gathered(
            sequences, lambda own, requests: own.acceptance.gains(requests, most, sigmas=sigmas)
        )

    def found(self, sequence: EngineSequence, asked: int, found: int) -> None:
        """A sequence was asked for drafts, at least 1, and there were `found`."""
        self._of(sequence.drafter).availability.observe(sequence.arrival, asked, found)

    def verified(self, sequence: EngineSequence, drafted: int, accepted: int, asked: int) -> None:
        """As `AcceptanceModel.observe`, of the sequence's drafter."""
        self._of(sequence.drafter).acceptance.observe(sequence.arrival, drafted, accepted, asked)

    def step(self) -> None:
        """Time passes: what was seen counts a little less."""
        for learnt in self._learnt.values():
            learnt.acceptance.step()
            learnt.availability.step()

    def forget(self, request: int) -> None:
        """The request of that arrival has ended; it may be unknown."""
        for learnt in self._learnt.values():
            learnt.acceptance.forget(request)
            learnt.availability.forget(request)

    def _of(self, drafter: object) -> _Learnt:
        learnt = self._learnt.get(drafter)
        if learnt is None:
            learnt = self._learnt[drafter] = _Learnt(self._new_model())
        return learnt

    def _gathered(
        self, sequences: Sequence[EngineSequence], ask: Callable[[_Learnt, Sequence[int]], Floats]
    ) -> Floats:
        """Rows of the sequences, each of its own drafter."""
        drafters = dict.fromkeys(sequence.drafter for sequence in sequences)
        if len(drafters) <= 1:
            drafter = next(iter(drafters), None)
            return ask(self._of(drafter), [sequence.arrival for sequence in sequences])
        parts: list[Floats] = []
        rows: list[int] = []
        for drafter in drafters:
            own = [row for row, sequence in enumerate(sequences) if sequence.drafter is drafter]
            parts.append(ask(self._of(drafter), [sequences[row].arrival for row in own]))
            rows += own
        together: Floats = np.empty_like(np.concatenate(parts))
        together[rows] = np.concatenate(parts)
        return together
