"""How many prompt tokens may run in a step beside sequences that decode.

A step's tokens all appear at its end, so a long prompt computed beside decodes makes each of them wait. The
budget keeps such a step within `max_decode_slowdown` times its time without prompt tokens, as far as the
measured costs say. Three exceptions, all for throughput's sake:

- where nothing decodes there is nobody to protect;
- prompts that were here before the oldest decode made its first step came together with it, as a burst
  does: holding them back would make the whole burst slower. They run unbounded, up to `burst_tokens`;
- prompts always make progress: of two steps at least one has a prompt token.
"""

from __future__ import annotations

from engine.config import DECODE_SLOWDOWN_LIMIT
from engine.sequence import Sequence
from engine.step_cost import StepCost


class PrefillBudget:
    """The budget of one step after the other.

    Args:
        cost: estimates.
        max_decode_slowdown: from 1 to `DECODE_SLOWDOWN_LIMIT`; 0 for no bound.
        burst_tokens: prompt tokens that decodes bear, from their start on, of prompts that came with them.
    """

    def __init__(self, cost: StepCost, max_decode_slowdown: float, burst_tokens: int) -> None:
        if max_decode_slowdown != 0 and not 1 <= max_decode_slowdown <= DECODE_SLOWDOWN_LIMIT:
            raise ValueError(
                f"max_decode_slowdown must be 0 (no bound) or from 1 to {DECODE_SLOWDOWN_LIMIT}, "
                f"not {max_decode_slowdown}"
            )
        self._cost = cost
        self._slowdown = max_decode_slowdown
        self._burst_tokens = burst_tokens
        self._burst_left = burst_tokens
        self._bounded = False
        self._oldest_s = 0.0
        self._left = 0
        self._stood_still = False

    def begin(self, decodes: int, oldest_decode_s: float) -> None:
        """Begins a step for which prompts wait.

        Args:
            decodes: sequences that decode in it.
            oldest_decode_s: when the first of those that decode had its first step.
        """
        self._bounded = decodes > 0 and self._slowdown != 0
        self._oldest_s = oldest_decode_s
        if not decodes:
            self._burst_left = self._burst_tokens
        if not self._bounded:
            self._stood_still = False
            return
        self._left = self._cost.prompt_tokens_beside(decodes, self._slowdown)
        if self._stood_still:
            self._left = max(self._left, 1)
        self._stood_still = self._left == 0

    def allowed(self, sequence: Sequence, tokens: int) -> int:
        """How many of `tokens` of this sequence's context may run."""
        if not self._bounded:
            return tokens
        if self._came_with_decodes(sequence) and self._burst_left > 0:
            return min(tokens, self._burst_left)
        return min(tokens, self._left)

    def spend(self, sequence: Sequence, tokens: int) -> None:
        """Takes tokens that are to run."""
        if not self._bounded:
            return
        self._stood_still = False
        if self._came_with_decodes(sequence) and self._burst_left > 0:
            self._burst_left -= tokens
        else:
            self._left -= tokens

    def _came_with_decodes(self, sequence: Sequence) -> bool:
        return sequence.submitted_s <= self._oldest_s
