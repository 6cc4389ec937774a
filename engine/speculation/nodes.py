"""Drafts among the tokens of a pass: where they stand, what they see, and where their KV goes afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.sequence import Sequence as EngineSequence

Ids = npt.NDArray[np.int64]


def tokens_to_run(sequence: EngineSequence, count: int) -> list[int]:
    """The next `count` tokens of a sequence, its drafts behind its own."""
    first = sequence.num_computed
    own = sequence.token_ids[first : first + count]
    return own if sequence.drafts is None else [*own, *sequence.drafts.token_ids]


def node_rows(ends: Ids, counts: Ids) -> Ids:
    """The last `counts[i]` rows before `ends[i]`, for all i, one after the other."""
    starts = np.cumsum(counts) - counts
    rows = np.arange(int(counts.sum()), dtype=np.int64)
    rows += np.repeat(ends - counts - starts, counts)
    return rows


def tree_order(
    sequences: Sequence[EngineSequence], query_starts: Ids, starts: Ids, positions: Ids
) -> Ids | None:
    """Sets the positions of drafts that branch, which lie one after the other in the cache all the same.

    Args:
        sequences: of the pass.
        query_starts: [B + 1] rows at which they begin.
        starts: [B] positions of their first tokens.
        positions: [T], of a batch without trees; changed in place.

    Returns:
        `ForwardBatch.visible`, [T]; None where nothing branches.
    """
    visible: Ids | None = None
    for index, sequence in enumerate(sequences):
        tree = sequence.drafts
        if tree is None or tree.is_chain:
            continue
        if visible is None:
            visible = np.zeros_like(positions)
        first = query_starts[index]
        rows = slice(first, first + tree.num_nodes)
        positions[rows] = starts[index] + np.array(tree.depths)
        visible[rows] = tree.visible
    return visible


def move_accepted(kv: torch.Tensor, table: Ids, first: int, path: Sequence[int], block_size: int) -> None:
    """Brings the KV of accepted drafts to where the tokens stand that they have become.

    Args:
        kv: the pool, [blocks, layers, 2, kv_heads, block_size, head_dim].
        table: the sequence's blocks.
        first: position of the root.
        path: accepted nodes, root not included, in order.
        block_size: tokens in a block.
    """
    moved = [(first + node, first + depth) for depth, node in enumerate(path, 1) if node != depth]
    if not moved:
        return
    sources, targets = np.array(moved, dtype=np.int64).T
    source_blocks, target_blocks = table[sources // block_size], table[targets // block_size]
    source_offsets, target_offsets = sources % block_size, targets % block_size
    # Indexing copies first, so a node may lie where another goes.
    kv[target_blocks, :, :, :, target_offsets] = kv[source_blocks, :, :, :, source_offsets]
