"""What is kept for a sequence between steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class EagleState:
    """Of one sequence, as long as it holds its blocks.

    Attributes:
        first_key: the first slot that has an entry; all up to `entries` have.
        entries: end of the slots that have one of a true feature.
        output: [H] of the last entry; None where it is not known.
        feature: [points' width] of the model at position `computed` - 1; None where it is not known.
        computed: see above.
    """

    first_key: int
    entries: int
    output: torch.Tensor | None
    feature: torch.Tensor | None
    computed: int
