"""How often each token occurs in a sequence, kept up as it grows, in the form that penalties need."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_FIRST_CAPACITY = 64


class TokenCounts:
    """Distinct tokens of a prompt and its answer, with their counts in the answer.

    A pure function of the tokens: `remove` undoes `add`, last token first.

    Args:
        prompt: the prompt's tokens; empty where the penalties do not look at it.
    """

    __slots__ = ("_counts", "_ids", "_slots")

    def __init__(self, prompt: Iterable[int]) -> None:
        distinct = sorted(set(prompt))
        self._slots = {token_id: slot for slot, token_id in enumerate(distinct)}
        capacity = len(distinct) + _FIRST_CAPACITY
        self._ids = np.zeros(capacity, dtype=np.int64)
        self._ids[: len(distinct)] = distinct
        self._counts = np.zeros(capacity, dtype=np.float32)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """[N] distinct token ids: those of the prompt first. Not to be kept: `add` may replace it."""
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """[N] occurrences of `ids` in the answer; 0 for those of the prompt alone."""
        return self._counts[: len(self._slots)]

    def add(self, token_id: int) -> None:
        """The answer grows by one token."""
        slot = self._slots.get(token_id)
        if slot is None:
            slot = self._slots[token_id] = len(self._slots)
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[slot] = token_id
            self._counts[slot] = 0
        self._counts[slot] += 1

    def remove(self, token_id: int, in_prompt: bool) -> None:
        """The answer loses its last token.

        Args:
            token_id: that token.
            in_prompt: whether `prompt` had it too.
        """
        slot = self._slots[token_id]
        self._counts[slot] -= 1
        if self._counts[slot] == 0 and not in_prompt:
            # Tokens go in the reverse order of their coming, so this is the newest slot.
            del self._slots[token_id]
