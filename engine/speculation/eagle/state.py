"""What is kept for a sequence between steps."""

from __future__ import annotations

from dataclasses import dataclass, field

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
        waiting: features of the model at positions `entries` - 1 to `computed` - 1, in order, in parts
            [n, points' width]: of the entries that are still to be written. None where all are.
        num_sealed: pages of the sequence that were sealed when `first_key` was looked at.
        drafts: whether drafts were asked of it since the last pass.
    """

    first_key: int
    entries: int
    output: torch.Tensor | None
    feature: torch.Tensor | None
    computed: int
    waiting: list[torch.Tensor] = field(default_factory=list)
    num_sealed: int = 0
    drafts: bool = False
