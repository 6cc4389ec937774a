"""How a runner is told what to run: one JSON object a line, commands on stdin, answers on stdout.

Only the standard library: this is imported in the environment of every peer.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


@dataclass(frozen=True, slots=True)
class Run:
    """One batch, greedily continued.

    Attributes:
        token_ids: of each sequence's answer.
        seconds: from the batch's submission to each of these tokens.
    """

    token_ids: list[list[int]]
    seconds: list[list[float]]


class GreedyEngine(Protocol):
    """What a runner implements."""

    def run(self, prompts: Sequence[Sequence[int]], output_tokens: int) -> Run:
        """Continues all prompts at once by exactly so many tokens each, EOS or not."""
        ...


class Recorder:
    """Collects tokens as they come. The clock starts when it is made."""

    def __init__(self, sequences: int) -> None:
        self._start = time.perf_counter()
        self._token_ids: list[list[int]] = [[] for _ in range(sequences)]
        self._seconds: list[list[float]] = [[] for _ in range(sequences)]

    def add(self, sequence: int, token_ids: Sequence[int]) -> None:
        """Tokens of a sequence that are there now, in order."""
        now = time.perf_counter() - self._start
        self._token_ids[sequence] += token_ids
        self._seconds[sequence] += [now] * len(token_ids)

    def finish(self) -> Run:
        """All of them."""
        return Run(self._token_ids, self._seconds)


class Channel:
    """A runner's end. Made before anything else prints: from then on stdout is stderr."""

    def __init__(self) -> None:
        # Most of the time it is stopped, and would not see that stdin has ended: it dies with its parent.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def _send(self, answer: dict[str, object]) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def serve(self, engine: GreedyEngine, version: str) -> None:
        """Says that it is ready, then runs one command after the other until stdin ends."""
        self._send({"version": version})
        for line in sys.stdin:
            command = json.loads(line)
            self._send(asdict(engine.run(command["prompts"], command["output_tokens"])))
