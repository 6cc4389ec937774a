"""How much requests differ in what becomes of their drafts, as far as the difference lasts."""

from __future__ import annotations

_DECAY = 0.998


class Spread:
    """The variance between requests: how well what one's drafts were says what the next ones will be.

    That is the covariance of what is known of a request and its next pass, each beyond what is to be expected
    of any. What varies from stretch to stretch of one text is over before it can be made use of, so it must
    not count, and does not: nor does chance, which is not the same twice.

    Args:
        first: variance before anything was seen.
        least: the variance is never less.
        prior: weight of `first`, in the unit of `take`.
    """

    def __init__(self, first: float, least: float, prior: float) -> None:
        self._shared = first * prior
        self._weight = prior
        self._least = least

    @property
    def variance(self) -> float:
        """Of one test's chance, or of the factor on the expected hits, as `take` is told."""
        return max(self._least, self._shared / self._weight)

    def take(self, known: float, weight: float, surprise: float, of: float) -> None:
        """A request had a pass.

        Args:
            known: right drafts beyond the expected ones that were known of it before.
            weight: tests that this is known of, or right ones expected of them.
            surprise: right drafts beyond the expected ones in this pass.
            of: tests in this pass, or right ones expected of them.
        """
        self._shared = self._shared * _DECAY + known * surprise
        self._weight = self._weight * _DECAY + weight * of
