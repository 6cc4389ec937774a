"""What steps cost on this machine, learnt from the steps themselves. Estimates only: nothing relies on them.

Three estimates, each a running mean of measurements that are bounded before they enter, so that one hiccup
of the machine, or a first step that compiles, moves none of them far:

- how long a step takes that decodes n sequences and nothing else, for bands of n an eighth wide;
- how much longer it takes for each prompt token beside them. Not a line through the origin, for a few rows
  more may cost nothing, or another tile; so it is the mean at about the number of tokens that is in use, and
  the number asked for next follows it there. A number that turned out too large is a step in that curve: for
  a while it is not tried again, in that band;
- how long a step with prompt tokens alone takes for each of them.

The first errs on the short side and the second on the long one: a decode that is slowed too much is the
worse error. Both follow their context, which grows slowly, by being means of the latest steps.
"""

from __future__ import annotations

from engine.bands import band_of

STALE_AFTER = 32
"""Steps with prompt tokens after which the time of a step without them must be measured again."""

FIRST_TOKENS = 16
"""Prompt tokens beside decodes where nothing is known yet."""

PREFILL_SAMPLE = 16
"""Fewer prompt tokens in a step say nothing about the cost of one: the weights' way to the cores does."""

SHUNNED_FOR = 500
"""Steps with prompt tokens for which a number that was too large is not tried again."""

MOST_TOKENS = 1 << 20
"""More are never asked for: no step has room for them."""

_QUICK, _SLOW = 0.3, 0.1
_OVERSHOOT = 1.25
_HICCUP = 2.0
_BOUND = 2.0
_RISE, _FALL = 1.25, 0.9


class StepCost:
    """Estimates in seconds of monotonic time. Deterministic given the measurements, and O(1) for each."""

    def __init__(self) -> None:
        self._decode_s: dict[int, float] = {}
        self._extra_s: float | None = None
        self._prefill_s: float | None = None
        self._mixed_steps = 0
        self._last_tokens = 0
        self._slowdown = 1.0
        # By band: the most that is asked for, and for how many more steps.
        self._most: dict[int, tuple[int, int]] = {}
        self._fitting: dict[int, int] = {}
        # Band and what was too large there the last time that it was tried.
        self._doubted: set[tuple[int, int]] = set()

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """Takes one step's measurement: sequences that decoded, prompt tokens beside them, time.

        Times that are not above 0 are ignored, as clocks give them.
        """
        if seconds <= 0:
            return
        if decodes and not prompt_tokens:
            band = band_of(decodes)
            self._decode_s[band] = _follow(self._decode_s.get(band), seconds, rise=_SLOW, fall=_QUICK)
            self._mixed_steps = 0
        elif decodes:
            self._mixed_steps += 1
            alone = self.decode_s(decodes)
            if alone is not None:
                allowed_s = (self._slowdown - 1) * alone
                # What cost nothing says nothing of twice as many, so more than that is never concluded.
                extra = max(seconds - alone, allowed_s / 2) / prompt_tokens
                self._extra_s = _follow(self._extra_s or self._prefill_s, extra, rise=_QUICK, fall=_SLOW)
                if seconds <= _HICCUP * self._slowdown * alone:
                    self._judge(band_of(decodes), prompt_tokens, seconds - alone <= _OVERSHOOT * allowed_s)
        elif prompt_tokens >= PREFILL_SAMPLE:
            self._prefill_s = _follow(self._prefill_s, seconds / prompt_tokens, rise=_SLOW, fall=_QUICK)

    def decode_s(self, decodes: int) -> float | None:
        """Time of a step that only decodes so many; None before the first such step.

        Between two measured bands the straight line; below the least, its time in proportion; above the
        greatest, its time: rather too short than too long.
        """
        band = band_of(decodes)
        if band in self._decode_s:
            return self._decode_s[band]
        below = max((known for known in self._decode_s if known < band), default=None)
        above = min((known for known in self._decode_s if known > band), default=None)
        if below is None:
            return None if above is None else self._decode_s[above] * band / above
        if above is None:
            return self._decode_s[below]
        share = (band - below) / (above - below)
        return self._decode_s[below] * (1 - share) + self._decode_s[above] * share

    @property
    def prefill_s_per_token(self) -> float | None:
        """Time of one prompt token in a step of such; None where none was measured."""
        return self._prefill_s

    def prompt_tokens_beside(self, decodes: int, slowdown: float) -> int:
        """Most prompt tokens for which a step takes at most `slowdown` times as long as without them.

        0 asks for one step without any, to measure it. Otherwise at least 1, and unchanged while what is
        right lies near: kernels that are made for one size are then used again.
        """
        self._slowdown = slowdown
        alone = self.decode_s(decodes)
        if alone is None or self._mixed_steps >= STALE_AFTER:
            return 0
        extra = self._extra_s or self._prefill_s
        if not extra:
            return FIRST_TOKENS
        tokens = max(1, int(min((slowdown - 1) * alone / extra, MOST_TOKENS)))
        if (band := band_of(decodes)) in self._most:
            tokens = min(tokens, self._most[band][0])
            self._last_tokens = min(self._last_tokens, tokens)
        if not self._last_tokens * _FALL <= tokens <= self._last_tokens * _RISE:
            self._last_tokens = tokens
        return self._last_tokens

    def _judge(self, band: int, tokens: int, fits: bool) -> None:
        """Notes whether so many tokens fitted."""
        if band in self._most:
            most, left = self._most.pop(band)
            if left > 1:
                self._most[band] = (most, left - 1)
        if fits:
            self._fitting[band] = tokens
            self._doubted.discard((band, tokens))
            return
        # The first step of a size prepares what later ones of it use again, so one is not enough.
        if (band, tokens) not in self._doubted:
            self._doubted.add((band, tokens))
            return
        fitting = self._fitting.get(band, 0)
        self._most[band] = (max(1, (fitting + tokens) // 2 if fitting < tokens else tokens - 1), SHUNNED_FOR)


def _follow(mean: float | None, sample: float, rise: float, fall: float) -> float:
    """The running mean after one more sample, which counts as at most twice and at least half of it."""
    if not mean:
        return sample
    bounded = min(max(sample, mean / _BOUND), mean * _BOUND)
    return mean + (rise if bounded > mean else fall) * (bounded - mean)
