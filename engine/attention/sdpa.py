"""Paged attention through torch's fused scaled dot product attention: the CPU path.

Blocks are gathered into buffers that live as long as the backend, by one `index_select` over rows of
(block_size * head_dim) numbers; the row order is chosen such that what is gathered already lies as
[K/V, sequence, kv_head, position, head_dim]. Decodes of like length share one call, their grouped query
heads folded into the query dimension; each prefill chunk has a call of its own. A chunk that begins its
sequence attends to its own keys without gathering.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.attention.base import AttentionBackend
from engine.models.batch import ForwardBatch
from engine.models.config import ModelConfig

_MAX_PADDING_BLOCKS = 32
"""Blocks of padding that a group of decodes takes on before a second call is cheaper."""


@dataclass(frozen=True, slots=True)
class _Gathered:
    """One call over gathered keys: either b decodes or one chunk (b = 1).

    Attributes:
        rows: rows of the flat batch, [b] or [n]; None where they are all of it, in order.
        block_rows: [2 * b * kv_heads * blocks] rows of the pool that layer 0 gathers.
        sequences: b.
        num_keys: keys that each sequence attends to, padding included.
        mask: added to the scores, broadcastable to [b, heads, queries, num_keys]; None where all is seen.
        is_decode: one query a sequence.
    """

    rows: torch.Tensor | None
    block_rows: torch.Tensor
    sequences: int
    num_keys: int
    mask: torch.Tensor | None
    is_decode: bool


@dataclass(frozen=True, slots=True)
class _Fresh:
    """A chunk [start, end) of the flat batch that begins its sequence."""

    start: int
    end: int


class SdpaAttention:
    """See the module; implements `AttentionBackend`."""

    def __init__(self, config: ModelConfig) -> None:
        self._heads = config.num_heads
        self._kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._buffer = torch.empty(0)

    def begin(self, batch: ForwardBatch, kv: torch.Tensor) -> None:
        """Plans the step's calls, their rows and masks, which all layers share."""
        block_size = kv.shape[4]
        self._block_size = block_size
        self._token_rows = kv.view(-1, self._head_dim)
        self._block_rows = kv.view(-1, block_size * self._head_dim)
        self._rows_per_block = kv.shape[1] * 2 * self._kv_heads
        self._heads_range = torch.arange(self._kv_heads, device=kv.device)
        blocks, offsets = batch.slots // block_size, batch.slots % block_size
        rows = (blocks * self._rows_per_block)[:, None] + self._heads_range
        self._write_rows = (rows * block_size + offsets[:, None]).flatten()
        self._calls = self._plan(batch, kv.dtype)

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Stores key and value, then attends; see `AttentionBackend`."""
        first = layer * 2 * self._kv_heads
        for index, tensor in enumerate((key, value)):
            rows = self._write_rows + (first + index * self._kv_heads) * self._block_size
            self._token_rows.index_copy_(0, rows, tensor.reshape(-1, self._head_dim))
        output = query.new_empty(query.shape[0], self._heads * self._head_dim)
        for call in self._calls:
            if isinstance(call, _Fresh):
                output[call.start : call.end] = self._attend_fresh(call, query, key, value)
                continue
            keys, values = self._gather(call, first)
            attended = self._attend_gathered(call, query, keys, values)
            if call.rows is None:
                return attended
            output.index_copy_(0, call.rows, attended)
        return output

    def _attend_fresh(
        self, call: _Fresh, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        attended = functional.scaled_dot_product_attention(
            _heads_first(query[call.start : call.end]),
            _heads_first(key[call.start : call.end]),
            _heads_first(value[call.start : call.end]),
            is_causal=True,
            enable_gqa=self._heads != self._kv_heads,
        )
        return attended[0].transpose(0, 1).flatten(1)

    def _attend_gathered(
        self, call: _Gathered, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        rows = query if call.rows is None else query.index_select(0, call.rows)
        if call.is_decode:
            folded = rows.view(call.sequences, self._kv_heads, -1, self._head_dim)
            attended = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=call.mask)
            return attended.reshape(call.sequences, -1)
        attended = functional.scaled_dot_product_attention(
            _heads_first(rows),
            keys,
            values,
            attn_mask=call.mask,
            enable_gqa=self._heads != self._kv_heads,
        )
        return attended[0].transpose(0, 1).flatten(1)

    def _gather(self, call: _Gathered, first_row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each [b, kv_heads, num_keys, head_dim]."""
        size = call.block_rows.numel() * self._block_size * self._head_dim
        if self._buffer.numel() < size or self._buffer.dtype != self._block_rows.dtype:
            self._buffer = torch.empty(size, dtype=self._block_rows.dtype, device=self._block_rows.device)
        gathered = self._buffer[:size].view(call.block_rows.numel(), -1)
        torch.index_select(self._block_rows, 0, call.block_rows + first_row, out=gathered)
        shaped = gathered.view(2, call.sequences, self._kv_heads, -1, self._head_dim)
        keys, values = shaped[:, :, :, : call.num_keys].unbind(0)
        return keys, values

    def _plan(self, batch: ForwardBatch, dtype: torch.dtype) -> list[_Gathered | _Fresh]:
        calls: list[_Gathered | _Fresh] = []
        decodes: list[int] = []
        for sequence, context in enumerate(batch.context_lens):
            start, end = batch.query_starts[sequence], batch.query_starts[sequence + 1]
            if end - start == context:
                calls.append(_Fresh(start, end))
            elif end - start == 1:
                decodes.append(sequence)
            else:
                calls.append(self._plan_chunk(batch, sequence, dtype))
        calls += [self._plan_decodes(batch, group, dtype) for group in self._group(batch, decodes)]
        return calls

    def _num_blocks(self, num_keys: int) -> int:
        return -(-num_keys // self._block_size)

    def _group(self, batch: ForwardBatch, decodes: list[int]) -> list[list[int]]:
        """Splits decodes, by ascending length, into groups with little padding each."""
        groups: list[list[int]] = []
        longest = padding = 0
        for sequence in sorted(decodes, key=lambda sequence: batch.context_lens[sequence]):
            blocks = self._num_blocks(batch.context_lens[sequence])
            more = (blocks - longest) * len(groups[-1]) if groups else 0
            if not groups or padding + more > _MAX_PADDING_BLOCKS:
                groups.append([])
                padding = more = 0
            groups[-1].append(sequence)
            padding += more
            longest = blocks
        # In batch order, a group of the whole batch needs no gathering of its queries.
        return [sorted(group) for group in groups]

    def _rows_of_blocks(self, tables: torch.Tensor) -> torch.Tensor:
        """Rows of the pool that layer 0 gathers for block tables [b, blocks], in [2, b, kv_heads, blocks]."""
        heads = self._heads_range[:, None] + tables[:, None] * self._rows_per_block
        return torch.stack((heads, heads + self._kv_heads)).flatten()

    def _plan_decodes(self, batch: ForwardBatch, group: list[int], dtype: torch.dtype) -> _Gathered:
        device = batch.block_tables.device
        lengths = [batch.context_lens[sequence] for sequence in group]
        longest = max(lengths)
        mask = None
        if min(lengths) != longest:
            hidden = torch.arange(longest, device=device) >= torch.tensor(lengths, device=device)[:, None]
            mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
            mask = mask.masked_fill_(hidden, -torch.inf)[:, None, None]
        tables = batch.block_tables[group, : self._num_blocks(longest)]
        rows = [batch.query_starts[sequence] for sequence in group]
        whole = len(group) == batch.query_starts[-1]
        return _Gathered(
            rows=None if whole else torch.tensor(rows, device=device),
            block_rows=self._rows_of_blocks(tables),
            sequences=len(group),
            num_keys=longest,
            mask=mask,
            is_decode=True,
        )

    def _plan_chunk(self, batch: ForwardBatch, sequence: int, dtype: torch.dtype) -> _Gathered:
        device = batch.block_tables.device
        start, end = batch.query_starts[sequence], batch.query_starts[sequence + 1]
        queries, keys = end - start, batch.context_lens[sequence]
        mask = torch.full((queries, keys), -torch.inf, dtype=dtype, device=device)
        tables = batch.block_tables[sequence : sequence + 1, : self._num_blocks(keys)]
        return _Gathered(
            rows=torch.arange(start, end, device=device),
            block_rows=self._rows_of_blocks(tables),
            sequences=1,
            num_keys=keys,
            mask=mask.triu_(keys - queries + 1),
            is_decode=False,
        )


def _heads_first(tokens: torch.Tensor) -> torch.Tensor:
    """[T, heads, head_dim] -> [1, heads, T, head_dim]."""
    return tokens.transpose(0, 1)[None]


def create(config: ModelConfig) -> AttentionBackend:
    """Makes the SDPA backend."""
    return SdpaAttention(config)
