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


class Ahead:
    """Successive batches of one entry of each sequence, each batch a slot further: tables are laid out once.

    Args:
        spans: where the entries of each sequence begin; their tokens are not known yet.
        steps: entries of each, for which it has slots; at least one of all.
        block_size: of the cache, whose blocks are of one layer group.
        device: of the batches.
    """

    def __init__(
        self, spans: Sequence[Span], steps: Sequence[int], block_size: int, device: torch.device
    ) -> None:
        firsts = np.array([span.first for span in spans], dtype=np.int64)
        ends = firsts + np.array(steps, dtype=np.int64)
        self._device = device
        self._tables = _tables([span.blocks for span in spans], ends.tolist(), block_size, 1)
        # [steps, B]. Those behind a sequence's own are for nobody.
        self._positions = np.minimum(firsts + np.arange(max(steps), dtype=np.int64)[:, None], ends - 1)
        pages, offsets = np.divmod(self._positions, block_size)
        self._slots = self._tables[0, np.arange(len(spans)), pages] * block_size + offsets
        self._first_keys = [span.first_key for span in spans]
        self._rows = list(range(len(spans)))
        self._fixed = self._for_rows(self._rows)

    def batch(self, step: int, rows: list[int], tokens: Sequence[int]) -> ForwardBatch:
        """The batch of entry number `step` of some sequences; all outputs are wanted.

        Args:
            step: from 0 on.
            rows: which sequences, in order.
            tokens: of the entries.
        """
        if rows != self._rows:
            self._rows, self._fixed = rows, self._for_rows(rows)
        query_starts, tables, logits_rows, first_keys = self._fixed
        positions = self._positions[step, rows]
        return ForwardBatch(
            token_ids=torch.tensor(tokens, device=self._device),
            positions=torch.from_numpy(positions).to(self._device),
            slots=torch.from_numpy(self._slots[step, rows][None]).to(self._device),
            query_starts=query_starts,
            context_lens=tuple((positions + 1).tolist()),
            block_tables=tables,
            logits_rows=logits_rows,
            first_keys=first_keys,
        )

    def _for_rows(
        self, rows: list[int]
    ) -> tuple[tuple[int, ...], torch.Tensor, torch.Tensor, tuple[int, ...]]:
        """What stays the same from step to step."""
        return (
            tuple(range(len(rows) + 1)),
            torch.from_numpy(self._tables[:, rows]).to(self._device),
            torch.arange(len(rows), device=self._device),
            tuple(self._first_keys[row] for row in rows),
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
