"""The tensors of a drafter's own passes: new entries of some sequences in the blocks of a paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.models.batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class Span:
    """New entries of one sequence, one after the other.

    Attributes:
        blocks: of the sequence, page by page: one of each layer group of whoever computes the entries.
        first: slot of the first one.
        tokens: of each.
        first_key: first slot that they see.
    """

    blocks: Sequence[int]
    first: int
    tokens: Sequence[int]
    first_key: int = 0


def make_batch(
    spans: Sequence[Span], block_size: int, device: torch.device, num_groups: int = 1
) -> ForwardBatch:
    """The batch of some spans; outputs are wanted of the last entry of each."""
    counts = np.array([len(span.tokens) for span in spans], dtype=np.int64)
    firsts = np.array([span.first for span in spans], dtype=np.int64)
    starts = np.zeros(len(spans) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    positions = np.arange(starts[-1], dtype=np.int64) + np.repeat(firsts - starts[:-1], counts)
    pages, offsets = np.divmod(positions, block_size)
    tables = _tables([span.blocks for span in spans], (firsts + counts).tolist(), block_size, num_groups)
    slots = tables[:, np.repeat(np.arange(len(spans)), counts), pages] * block_size + offsets
    tokens = np.concatenate([np.asarray(span.tokens, dtype=np.int64) for span in spans])

    def tensor(array: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return ForwardBatch(
        token_ids=tensor(tokens),
        positions=tensor(positions),
        slots=tensor(slots),
        query_starts=tuple(starts.tolist()),
        context_lens=tuple((firsts + counts).tolist()),
        block_tables=tensor(tables),
        logits_rows=tensor(starts[1:] - 1),
        first_keys=tuple(span.first_key for span in spans),
    )


def _tables(
    blocks: Sequence[Sequence[int]], lengths: Sequence[int], block_size: int, num_groups: int
) -> npt.NDArray[np.int64]:
    """Tables for contexts of some lengths, [groups, B, most pages], padded with the scratch block."""
    counts = [-(-length // block_size) * num_groups for length in lengths]
    tables = np.zeros((len(blocks), max(counts)), dtype=np.int64)
    for row, own, count in zip(tables, blocks, counts, strict=True):
        row[:count] = own[:count]
    return tables.reshape(len(blocks), -1, num_groups).transpose(2, 0, 1)
