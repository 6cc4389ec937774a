"""What is kept for a sequence between steps, and the tensors of a head's pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.models.batch import ForwardBatch


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


@dataclass(frozen=True, slots=True)
class Span:
    """New entries of one sequence, one after the other.

    Attributes:
        blocks: of the sequence.
        first: slot of the first one.
        tokens: of each.
        first_key: first slot that they see.
    """

    blocks: Sequence[int]
    first: int
    tokens: Sequence[int]
    first_key: int


def make_batch(spans: Sequence[Span], block_size: int, device: torch.device) -> ForwardBatch:
    """The batch of some spans; outputs are wanted of the last entry of each."""
    counts = np.array([len(span.tokens) for span in spans], dtype=np.int64)
    firsts = np.array([span.first for span in spans], dtype=np.int64)
    starts = np.zeros(len(spans) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    positions = np.arange(starts[-1], dtype=np.int64) + np.repeat(firsts - starts[:-1], counts)
    tables = block_tables([span.blocks for span in spans], (firsts + counts).tolist(), block_size)
    blocks = tables[np.repeat(np.arange(len(spans)), counts), positions // block_size]
    tokens = np.concatenate([np.asarray(span.tokens, dtype=np.int64) for span in spans])

    def tensor(array: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    return ForwardBatch(
        token_ids=tensor(tokens),
        positions=tensor(positions),
        slots=tensor(blocks * block_size + positions % block_size)[None],
        query_starts=tuple(starts.tolist()),
        context_lens=tuple((firsts + counts).tolist()),
        block_tables=tensor(tables)[None],
        logits_rows=tensor(starts[1:] - 1),
        first_keys=tuple(span.first_key for span in spans),
    )


def block_tables(
    blocks: Sequence[Sequence[int]], lengths: Sequence[int], block_size: int
) -> npt.NDArray[np.int64]:
    """Tables for contexts of some lengths, [B, most blocks], padded with the scratch block."""
    counts = [-(-length // block_size) for length in lengths]
    tables = np.zeros((len(blocks), max(counts)), dtype=np.int64)
    for row, own, count in zip(tables, blocks, counts, strict=True):
        row[:count] = own[:count]
    return tables
