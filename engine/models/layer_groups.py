"""Which layers share a block: those that keep the same history, in groups of equal size.

Layers of one window keep the KV of the same tokens, so they can share blocks; layers of different windows
cannot, for the shorter history is let go earlier. The blocks of all groups come from one pool, so they are of
one size: a history of many layers is split into several groups, of which each sequence has as many blocks
for the same tokens. What one history lets go any other can use then, and no memory is set apart for either
(docs/decisions/0019-layer-groups.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MAX_GROUPS = 8
"""More would be finer than their bookkeeping is worth, for each sequence has blocks of each."""
_WINDOWS = 4
"""Windows in the context for which memory is weighed: the longest history then counts so many times."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers whose KV of `block_size` tokens lies in one block.

    Attributes:
        window: tokens that a token attends to in these layers, itself the last of them; 0 is all.
        layers: numbers of the layers, in the order in which they lie in a block.
    """

    window: int
    layers: tuple[int, ...]


@lru_cache(maxsize=64)
def layer_groups(windows: tuple[int, ...]) -> tuple[LayerGroup, ...]:
    """Groups of the layers whose windows these are, the longest history first.

    One history is one group. Several are cut into groups of one size, so that all blocks are equal: the size
    by which a context of `_WINDOWS` windows takes least memory, with at most `MAX_GROUPS` groups, or as many
    as there are histories.
    """
    histories: dict[int, list[int]] = {}
    for layer, window in enumerate(windows):
        histories.setdefault(window, []).append(layer)
    order = sorted(histories, key=lambda window: (window != 0, -window))
    size = _best_size([len(histories[window]) for window in order])
    return tuple(
        LayerGroup(window, tuple(histories[window][first : first + size]))
        for window in order
        for first in range(0, len(histories[window]), size)
    )


def layers_per_block(groups: Sequence[LayerGroup]) -> int:
    """Places for layers in every block: the size of the largest group."""
    return max(len(group.layers) for group in groups)


def places(groups: Sequence[LayerGroup]) -> tuple[tuple[int, int], ...]:
    """For each layer its group and its place in that group's blocks."""
    found = {
        layer: (index, place)
        for index, group in enumerate(groups)
        for place, layer in enumerate(group.layers)
    }
    return tuple(found[layer] for layer in range(len(found)))


def _best_size(counts: Sequence[int]) -> int:
    """Layers to a block for histories of so many layers, the longest history first."""
    most = max(MAX_GROUPS, len(counts))
    sizes = {size: [-(-count // size) for count in counts] for size in range(1, max(counts) + 1)}
    return min(
        (size for size, groups in sizes.items() if sum(groups) <= most),
        # Of equally good sizes the largest, which makes the fewest groups.
        key=lambda size: (size * (sum(sizes[size]) + (_WINDOWS - 1) * sizes[size][0]), -size),
    )
