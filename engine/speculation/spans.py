"""The tensors of a drafter's own passes: new entries of some sequences in the blocks of a paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.kv.block_pool import SCRATCH_BLOCK
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
    ends = [span.first + len(span.tokens) for span in spans]
    tables = _tables([span.blocks for span in spans], ends, block_size, num_groups)
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[list[int]] = [[] for _ in range(num_groups)]
    starts = [0]
    # Mostly a few entries: what NumPy saves later it costs before.
    for span, end in zip(spans, ends, strict=True):
        token_ids += span.tokens
        own = range(span.first, end)
        positions += own
        for group, into in enumerate(slots):
            blocks = span.blocks if num_groups == 1 else span.blocks[group::num_groups]
            into += [_slot(blocks, position, block_size) for position in own]
        starts.append(len(positions))

    def tensor(values: Sequence[object]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return ForwardBatch(
        token_ids=tensor(token_ids),
        positions=tensor(positions),
        slots=tensor(slots),
        query_starts=tuple(starts),
        context_lens=tuple(ends),
        block_tables=tensor(tables),
        logits_rows=tensor([start - 1 for start in starts[1:]]),
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
        self._spans = spans
        self._ends = [span.first + own for span, own in zip(spans, steps, strict=True)]
        self._block_size = block_size
        self._device = device
        self._rows = list(range(len(spans)))
        self._fixed = self._for_rows(self._rows)

    def batch(self, step: int, rows: list[int], tokens: Sequence[int]) -> ForwardBatch:
        """The batch of entry number `step` of some sequences; all outputs are wanted.

        Args:
            step: from 0 on; of each of the sequences one of its own.
            rows: which sequences, in order.
            tokens: of the entries.
        """
        if rows != self._rows:
            self._rows, self._fixed = rows, self._for_rows(rows)
        query_starts, tables, logits_rows, first_keys = self._fixed
        positions = [self._spans[row].first + step for row in rows]
        slots = [
            _slot(self._spans[row].blocks, position, self._block_size)
            for row, position in zip(rows, positions, strict=True)
        ]
        return ForwardBatch(
            token_ids=torch.tensor(tokens, device=self._device),
            positions=torch.tensor(positions, device=self._device),
            slots=torch.tensor([slots], device=self._device),
            query_starts=query_starts,
            context_lens=tuple(position + 1 for position in positions),
            block_tables=tables,
            logits_rows=logits_rows,
            first_keys=first_keys,
        )

    def _for_rows(
        self, rows: list[int]
    ) -> tuple[tuple[int, ...], torch.Tensor, torch.Tensor, tuple[int, ...]]:
        """What stays the same from step to step."""
        spans, ends = [self._spans[row] for row in rows], [self._ends[row] for row in rows]
        tables = _tables([span.blocks for span in spans], ends, self._block_size, 1)
        return (
            tuple(range(len(rows) + 1)),
            torch.tensor(tables, device=self._device),
            torch.arange(len(rows), device=self._device),
            tuple(span.first_key for span in spans),
        )


def _slot(blocks: Sequence[int], position: int, block_size: int) -> int:
    """Where a position lies in blocks of one layer group."""
    return blocks[position // block_size] * block_size + position % block_size


def _tables(
    blocks: Sequence[Sequence[int]], lengths: Sequence[int], block_size: int, num_groups: int
) -> list[list[list[int]]]:
    """Tables for contexts of some lengths, [groups, B, most pages], padded with the scratch block."""
    pages = [-(-length // block_size) for length in lengths]
    most = max(pages)
    return [
        [
            [*own[group : count * num_groups : num_groups], *[SCRATCH_BLOCK] * (most - count)]
            for own, count in zip(blocks, pages, strict=True)
        ]
        for group in range(num_groups)
    ]
