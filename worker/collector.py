"""How often Python looks for garbage in a worker's process."""

from __future__ import annotations

import gc

_YOUNG = 50_000
"""Objects made and not freed before the young ones are looked at; Python's own number is 700 to 2,000."""


def settle_collector() -> None:
    """Call it once the model is loaded: what is there now is never looked at again, what comes later seldom.

    A step of a thousand sequences makes thousands of objects, most of which a reference count frees at once.
    At Python's own threshold several collections fall into every step and take a third of its control cost.
    """
    gc.collect()
    gc.freeze()
    _, middle, old = gc.get_threshold()
    gc.set_threshold(_YOUNG, middle, old)
