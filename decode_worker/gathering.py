"""Lets answers whose prompts came together decode together, where prefill runs on the same cores.

A pass over few sequences takes nearly as long as one over many, for the weights are read once in each. Right
after the first prompts of a burst have been handed over there are few, and every pass takes the cores from
the prefill of the others. An engine that prefills by itself computes such a burst first
(`engine.prefill_budget`); two workers on the same cores would share them evenly, and both would take longer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from engine.api import Engine, StepOutput

MOST_PASSES = 16
"""Passes of a new batch that are spread: nobody loses more than so many times `SPREAD` passes' time."""

SPREAD = 8
"""Time between two such passes, in times of a pass: decoding has a ninth of the time, prefill the rest."""

LONGEST_WAIT_S = 2.0
"""A pass during which the process was stopped says nothing of the next one."""


class Gathering:
    """Spreads the first passes of a batch while handovers are on their way. Implements `engine.loop.Pacing`.

    A batch is new when its first sequence is adopted by an idle engine. It is whole, for good, as soon as
    no handover is under way or `MOST_PASSES` were made: prompts that come later wait for nobody's sake. First
    tokens are never held back, and nothing is where the engine has prompts of its own to compute.

    `expect` and `forget` are called on the event loop, everything else on the engine's thread.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._expected: set[str] = set()
        self._unsent = False
        self._passes_left = 0
        self._next_pass_s = 0.0

    def expect(self, request_id: str) -> None:
        """A handover is under way, from a prefill worker on these cores."""
        self._expected.add(request_id)

    def forget(self, request_id: str) -> None:
        """The handover has failed or been given up."""
        self._expected.discard(request_id)

    def adopted(self, request_id: str, engine: Engine) -> None:
        """The engine has just adopted a sequence."""
        self._expected.discard(request_id)
        self._unsent = True
        if engine.stats().running <= 1:
            self._passes_left = MOST_PASSES

    def wait_s(self, engine: Engine) -> float:
        """See `engine.loop.Pacing`."""
        if self._unsent or not self._passes_left:
            return 0.0
        if not self._expected or engine.stats().queued_prefill_tokens:
            self._passes_left = 0
            return 0.0
        return max(0.0, self._next_pass_s - self._clock())

    def stepped(self, output: StepOutput) -> None:
        """See `engine.loop.Pacing`."""
        if not output.batch_size:
            # It took first tokens out.
            self._unsent = False
        elif self._passes_left:
            self._passes_left -= 1
            self._next_pass_s = self._clock() + min(SPREAD * output.duration_s, LONGEST_WAIT_S)


def share_cores(own_endpoint: str, endpoint: str, pid: int) -> bool:
    """Whether a worker runs on cores that this process may use too.

    Args:
        own_endpoint: host:port of this worker's server.
        endpoint: of the other's.
        pid: its process, where it runs on this machine.
    """
    if own_endpoint.rpartition(":")[0] != endpoint.rpartition(":")[0]:
        return False
    try:
        return not os.sched_getaffinity(pid).isdisjoint(os.sched_getaffinity(0))
    except OSError:
        # Not to be seen from here, so it is in a container of its own.
        return False
