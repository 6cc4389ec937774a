"""What the engine asks of a grammar library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.api import GrammarSpec


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or tokens that do not match it; the message says why."""


class GrammarMatcher(Protocol):
    """One answer's place in its grammar: a pure function of the answer's tokens."""

    @property
    def is_complete(self) -> bool:
        """Whether the answer matches the grammar, and nothing can follow but an EOS token."""
        ...

    def advance(self, token_id: int) -> None:
        """The answer grows by one token. Raises GrammarError, changing nothing, where it may not come."""
        ...

    def rollback(self, count: int) -> None:
        """The answer loses its last `count` tokens."""
        ...


class CompiledGrammar(Protocol):
    """A grammar over one model's vocabulary; shared by all answers that are held to it."""

    def start(self) -> GrammarMatcher:
        """A matcher for a new answer."""
        ...


class GrammarCompiler(Protocol):
    """Compiles grammars for one model's vocabulary. Safe to call from several threads."""

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """The compiled form; at once where it was compiled lately, else after milliseconds to seconds.

        Raises GrammarError.
        """
        ...

    def allowed(self, matchers: Sequence[GrammarMatcher]) -> npt.NDArray[np.bool_]:
        """Which tokens may come next, [len(matchers), vocab_size].

        In a row whose matcher has met a limit of the library nothing is allowed.
        """
        ...
