"""Which candidates make a Medusa tree: the same for every sequence and step.

A **choice** names a node by the way there: for each head the rank of the candidate that is taken, 0 being the
likeliest. So (0, 2) is the third candidate of the second head, behind the likeliest of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

Choice = tuple[int, ...]

_SURE = (0.6, 0.5, 0.4, 0.3)
"""How often the likeliest candidate of each head is right, as a rule; of later heads as of the last."""


def default_choices(depth: int, width: int, most: int) -> tuple[Choice, ...]:
    """The nodes that are likeliest to be right, best first, which puts parents before children.

    A candidate that is right is the next one with the head's own chance, whatever its rank.

    Args:
        depth: heads that are used.
        width: candidates of each that may follow a node.
        most: nodes, the root not counted.
    """
    chosen: list[Choice] = []
    front: list[tuple[float, Choice]] = []

    def consider(chance: float, choice: Choice) -> None:
        sure = _SURE[min(len(choice), len(_SURE)) - 1]
        heappush(front, (-chance * sure * (1 - sure) ** choice[-1], choice))

    consider(1.0, (0,))
    while front and len(chosen) < most:
        negative, choice = heappop(front)
        chosen.append(choice)
        *way, rank = choice
        if rank + 1 < width:
            sure = _SURE[min(len(choice), len(_SURE)) - 1]
            heappush(front, (negative * (1 - sure), (*way, rank + 1)))
        if len(choice) < depth:
            consider(-negative, (*choice, 0))
    return tuple(chosen)


def in_order(choices: Sequence[Choice], depth: int, width: int, most: int) -> tuple[Choice, ...]:
    """The choices of a deployment, checked and each behind its parent.

    Args:
        choices: as configured, in the order of their worth.
        depth: most heads that may be used.
        width: candidates of each that may follow a node.
        most: nodes, the root not counted.

    Raises:
        ValueError: one of them is twice there, leads out of these bounds, or has no parent among them.
    """
    places = {choice: place for place, choice in enumerate(choices)}
    if len(places) < len(choices):
        raise ValueError("medusa_choices names a node twice")
    if len(choices) > most:
        raise ValueError(f"medusa_choices has {len(choices)} nodes, but there may be {most} beside the root")
    for choice in choices:
        if not 0 < len(choice) <= depth:
            raise ValueError(
                f"medusa_choices has {list(choice)}, but num_speculative_tokens allows 1 to {depth} ranks"
            )
        if not all(0 <= rank < width for rank in choice):
            raise ValueError(f"medusa_choices has {list(choice)}, but eagle_topk allows ranks below {width}")
        if len(choice) > 1 and choice[:-1] not in places:
            raise ValueError(f"medusa_choices has {list(choice)}, but not {list(choice[:-1])} before it")

    def order(choice: Choice) -> tuple[int, int]:
        return max(places[choice[:length]] for length in range(1, len(choice) + 1)), len(choice)

    return tuple(sorted(choices, key=order))
