"""The tensors of one forward pass: the seam between scheduling and models."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """A flat batch of T new tokens from B sequences; prefill chunks and decodes side by side.

    Sequence i owns the tokens [query_starts[i], query_starts[i + 1]). Its context, new tokens included,
    is `context_lens[i]` tokens long, and lies, in the layers of group g, in the blocks `block_tables[g, i]`,
    padded with 0, the scratch block. A new token's KV is written there to `slots[g]` = block * block_size +
    offset; slots inside block 0 discard it (prefix hits that need only logits recomputed). All index tensors
    are int64. G layer groups are those of the model, see `engine.models.layer_groups`.

    Attributes:
        token_ids: [T].
        positions: [T].
        slots: [G, T].
        query_starts: B + 1 Python ints.
        context_lens: B Python ints.
        block_tables: [G, B, max_blocks].
        logits_rows: [R] rows of the flat batch whose logits are wanted.
        visible: [T], which tokens of a draft tree of its own sequence a token sees: bit j stands for the
            tree's j-th, itself included; 0 is causal order, all up to itself. A tree's tokens lie one after
            the other, whatever their positions, at most 64 of them, and end the context. Before them a token
            sees what one of its position sees, so a window must be longer than the tree is deep. None where
            no token has bits.
        tree_starts: B Python ints: the token of a sequence's context that bit 0 stands for. None where that
            is the first new token of each.
        first_keys: B Python ints: the first token of its context that a sequence's tokens see, at most its
            first new one; those before it have no KV. None where all have.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    query_starts: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_tables: torch.Tensor
    logits_rows: torch.Tensor
    visible: torch.Tensor | None = None
    tree_starts: tuple[int, ...] | None = None
    first_keys: tuple[int, ...] | None = None
