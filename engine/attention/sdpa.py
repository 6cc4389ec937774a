"""Paged attention through torch's fused scaled dot product attention: the CPU path.

Blocks are gathered into buffers that live as long as the backend, by one `index_select` over rows of
(block_size * head_dim) numbers; the row order is chosen such that what is gathered already lies as
[K/V, sequence, kv_head, position, head_dim]. Decodes of like length share one call, their grouped query
heads folded into the query dimension; each prefill chunk has a call of its own. A chunk that begins its
sequence attends to its own keys without gathering. Layers with a window gather only the blocks that it
reaches; the layers of a group share their plan. Soft-capped scores, which the fused form does not know, are
computed step by step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.attention.base import AttentionBackend
from engine.models.batch import ForwardBatch
from engine.models.config import ModelConfig
from engine.models.layer_groups import places
from engine.ops.base import Ops

_MAX_BITS = 64
_MAX_PADDING_BLOCKS = 32
"""Blocks of padding that a group of decodes takes on before a second call is cheaper."""


@dataclass(frozen=True, slots=True)
class _Gathered:
    """One call over gathered keys: either b decodes or one chunk (b = 1).

    Attributes:
        rows: rows of the flat batch, [b] or [n]; None where they are all of it, in order.
        block_rows: [2 * b * kv_heads * blocks] rows of the pool that the first layer of the group gathers.
        sequences: b.
        num_keys: keys that each sequence attends to, padding included.
        mask: added to the scores, [b, 1, queries, num_keys]; None where all is seen.
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
    """A chunk [start, end) of the flat batch that begins its sequence; causal where `mask` is None."""

    start: int
    end: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Reach:
    """What a sequence's new tokens see of it in the layers of one group.

    Attributes:
        sequence: index in the batch.
        first_block: of its block table, the first that any new token sees.
        keys: positions from the start of that block to the end of the context.
        hidden: positions at the start of that block that no new token sees.
    """

    sequence: int
    first_block: int
    keys: int
    hidden: int


class SdpaAttention:
    """See the module; implements `AttentionBackend`."""

    def __init__(self, config: ModelConfig) -> None:
        self._heads = config.num_heads
        self._kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._scale = config.attention_scale
        self._softcap = config.attention_softcap
        self._groups = config.layer_groups
        self._places = places(config.layer_groups)
        self._buffer = torch.empty(0)
        # Of the step's chunks, by sequence and window: groups of one window share them.
        self._masks: dict[tuple[int, int], torch.Tensor] = {}

    def begin(self, batch: ForwardBatch, kv: torch.Tensor) -> None:
        """Plans the step's calls, their rows and masks, which all layers of a group share."""
        block_size = kv.shape[4]
        self._block_size = block_size
        self._token_rows = kv.view(-1, self._head_dim)
        self._block_rows = kv.view(-1, block_size * self._head_dim)
        self._rows_per_block = kv.shape[1] * 2 * self._kv_heads
        self._heads_range = torch.arange(self._kv_heads, device=kv.device)
        blocks, offsets = batch.slots // block_size, batch.slots % block_size
        rows = (blocks * self._rows_per_block)[..., None] + self._heads_range
        self._write_rows = (rows * block_size + offsets[..., None]).flatten(1)
        longest = max(batch.context_lens, default=0)
        self._masks = {}
        self._plans = [
            self._plan(batch, tables, kv.dtype, group.window if group.window < longest else 0)
            for group, tables in zip(self._groups, batch.block_tables, strict=True)
        ]

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Stores key and value, then attends; see `AttentionBackend`."""
        group, place = self._places[layer]
        first = place * 2 * self._kv_heads
        for index, tensor in enumerate((key, value)):
            rows = self._write_rows[group] + (first + index * self._kv_heads) * self._block_size
            self._token_rows.index_copy_(0, rows, tensor.reshape(-1, self._head_dim))
        output = query.new_empty(query.shape[0], self._heads * self._head_dim)
        for call in self._plans[group]:
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
        attended = self._dot_products(
            _heads_first(query[call.start : call.end]),
            _heads_first(key[call.start : call.end]),
            _heads_first(value[call.start : call.end]),
            call.mask,
            is_causal=call.mask is None,
        )
        return attended[0].transpose(0, 1).flatten(1)

    def _attend_gathered(
        self, call: _Gathered, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        rows = query if call.rows is None else query.index_select(0, call.rows)
        if call.is_decode:
            folded = rows.view(call.sequences, self._kv_heads, -1, self._head_dim)
            return self._dot_products(folded, keys, values, call.mask).reshape(call.sequences, -1)
        attended = self._dot_products(_heads_first(rows), keys, values, call.mask)
        return attended[0].transpose(0, 1).flatten(1)

    def _dot_products(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        """Attention of [b, heads, n, head_dim] over [b, kv_heads, m, head_dim]."""
        if not self._softcap:
            return functional.scaled_dot_product_attention(
                query,
                keys,
                values,
                attn_mask=mask,
                is_causal=is_causal,
                scale=self._scale,
                enable_gqa=query.shape[1] != keys.shape[1],
            )
        b, heads, n, head_dim = query.shape
        grouped = query.reshape(b, keys.shape[1], -1, head_dim)
        scores = grouped @ keys.transpose(2, 3) * self._scale
        scores = torch.tanh(scores / self._softcap) * self._softcap
        if mask is not None:
            scores = (scores.view(b, heads, n, -1) + mask).view(scores.shape)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        return (weights @ values).view(b, heads, n, head_dim)

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

    def _plan(
        self, batch: ForwardBatch, tables: torch.Tensor, dtype: torch.dtype, window: int
    ) -> list[_Gathered | _Fresh]:
        """The calls of a layer group, whose block tables are [B, max_blocks]."""
        calls: list[_Gathered | _Fresh] = []
        decodes: list[_Reach] = []
        trees = _trees(batch)
        for sequence, context in enumerate(batch.context_lens):
            start, end = batch.query_starts[sequence], batch.query_starts[sequence + 1]
            reach = self._reach(batch, sequence, sequence in trees, window)
            if sequence in trees:
                mask = self._tree_mask(batch, reach, dtype, window)
                calls.append(self._plan_chunk(batch, tables, reach, mask))
            elif end - start == context:
                # The fused form is causal by itself, but knows neither windows nor soft caps.
                masked = self._softcap or 0 < window < context
                calls.append(_Fresh(start, end, self._mask(batch, reach, dtype, window) if masked else None))
            elif end - start == 1:
                decodes.append(reach)
            else:
                mask = self._mask(batch, reach, dtype, window)
                calls.append(self._plan_chunk(batch, tables, reach, mask))
        calls += [self._plan_decodes(batch, tables, group, dtype) for group in self._group(decodes)]
        return calls

    def _reach(self, batch: ForwardBatch, sequence: int, is_tree: bool, window: int) -> _Reach:
        start, end = batch.query_starts[sequence], batch.query_starts[sequence + 1]
        context = batch.context_lens[sequence]
        first = 0 if batch.first_keys is None else batch.first_keys[sequence]
        if window:
            # Tokens of a tree may lie further back than they stand.
            lowest = int(batch.positions[start:end].min()) if is_tree else context - (end - start)
            first = max(first, lowest + 1 - window)
        first_block = first // self._block_size
        begin = first_block * self._block_size
        return _Reach(sequence, first_block, context - begin, first - begin)

    def _num_blocks(self, num_keys: int) -> int:
        return -(-num_keys // self._block_size)

    def _group(self, decodes: list[_Reach]) -> list[list[_Reach]]:
        """Splits decodes, by ascending number of keys, into groups with little padding each."""
        groups: list[list[_Reach]] = []
        longest = padding = 0
        for reach in sorted(decodes, key=lambda reach: reach.keys):
            blocks = self._num_blocks(reach.keys)
            more = (blocks - longest) * len(groups[-1]) if groups else 0
            if not groups or padding + more > _MAX_PADDING_BLOCKS:
                groups.append([])
                padding = more = 0
            groups[-1].append(reach)
            padding += more
            longest = blocks
        # In batch order, a group of the whole batch needs no gathering of its queries.
        return [sorted(group, key=lambda reach: reach.sequence) for group in groups]

    def _rows_of_blocks(self, tables: torch.Tensor) -> torch.Tensor:
        """Rows of the pool that a group's first layer gathers, in [2, b, kv_heads, blocks].

        `tables` are block tables, [b, blocks].
        """
        heads = self._heads_range[:, None] + tables[:, None] * self._rows_per_block
        return torch.stack((heads, heads + self._kv_heads)).flatten()

    def _tables(self, tables: torch.Tensor, group: list[_Reach], num_blocks: int) -> torch.Tensor:
        """The reached part of the block tables, [b, num_blocks]; what pads it lies in any block."""
        rows = tables[[reach.sequence for reach in group]]
        if not any(reach.first_block for reach in group):
            return rows[:, :num_blocks]
        firsts = torch.tensor([reach.first_block for reach in group], device=rows.device)
        columns = firsts[:, None] + torch.arange(num_blocks, device=rows.device)
        return rows.gather(1, columns.clamp_(max=rows.shape[1] - 1))

    def _plan_decodes(
        self, batch: ForwardBatch, tables: torch.Tensor, group: list[_Reach], dtype: torch.dtype
    ) -> _Gathered:
        device = batch.block_tables.device
        longest = max(reach.keys for reach in group)
        mask = None
        if any(reach.hidden or reach.keys != longest for reach in group):
            bounds = torch.tensor([(reach.hidden, reach.keys) for reach in group], device=device)
            positions = torch.arange(longest, device=device)
            unseen = (positions < bounds[:, :1]) | (positions >= bounds[:, 1:])
            mask = torch.zeros(unseen.shape, dtype=dtype, device=device)
            mask = mask.masked_fill_(unseen, -torch.inf)[:, None, None]
        rows = [batch.query_starts[reach.sequence] for reach in group]
        whole = len(group) == batch.query_starts[-1]
        return _Gathered(
            rows=None if whole else torch.tensor(rows, device=device),
            block_rows=self._rows_of_blocks(self._tables(tables, group, self._num_blocks(longest))),
            sequences=len(group),
            num_keys=longest,
            mask=mask,
            is_decode=True,
        )

    def _plan_chunk(
        self, batch: ForwardBatch, tables: torch.Tensor, reach: _Reach, mask: torch.Tensor
    ) -> _Gathered:
        start, end = batch.query_starts[reach.sequence], batch.query_starts[reach.sequence + 1]
        return _Gathered(
            rows=torch.arange(start, end, device=batch.block_tables.device),
            block_rows=self._rows_of_blocks(self._tables(tables, [reach], self._num_blocks(reach.keys))),
            sequences=1,
            num_keys=reach.keys,
            mask=mask,
            is_decode=False,
        )

    def _mask(self, batch: ForwardBatch, reach: _Reach, dtype: torch.dtype, window: int) -> torch.Tensor:
        """What a chunk's tokens do not see of the keys that the chunk reaches, [1, 1, queries, keys]."""
        known = self._masks.get((reach.sequence, window))
        if known is not None:
            return known
        queries = batch.query_starts[reach.sequence + 1] - batch.query_starts[reach.sequence]
        before = reach.keys - queries
        mask = torch.full((queries, reach.keys), -torch.inf, dtype=dtype, device=batch.block_tables.device)
        unseen = mask.triu(before + 1)
        if window:
            unseen += mask.tril(before - window)
        unseen[:, : reach.hidden] = -torch.inf
        mask = self._masks[reach.sequence, window] = unseen[None, None]
        return mask

    def _tree_mask(self, batch: ForwardBatch, reach: _Reach, dtype: torch.dtype, window: int) -> torch.Tensor:
        """The same for tokens of a draft tree."""
        assert batch.visible is not None
        rows = slice(batch.query_starts[reach.sequence], batch.query_starts[reach.sequence + 1])
        bits, context = batch.visible[rows, None], batch.context_lens[reach.sequence]
        tree = context - len(bits) if batch.tree_starts is None else batch.tree_starts[reach.sequence]
        keys = torch.arange(context - reach.keys, context, device=bits.device)
        own = torch.arange(context - len(bits), context, device=bits.device)[:, None]
        nodes = (keys - tree).clamp_(0, _MAX_BITS - 1)
        seen = torch.where(keys < tree, True, (bits >> nodes & 1).bool())
        seen = torch.where(bits == 0, keys <= own, seen)
        seen[:, : reach.hidden] = False
        if window:
            oldest = torch.where(bits == 0, own, batch.positions[rows, None]) + 1 - window
            seen &= (keys >= tree) & (bits != 0) | (keys >= oldest)
        mask = torch.zeros(seen.shape, dtype=dtype, device=bits.device)
        return mask.masked_fill_(~seen, -torch.inf)[None, None]


def _trees(batch: ForwardBatch) -> frozenset[int]:
    """Sequences of which a token has bits."""
    if batch.visible is None:
        return frozenset()
    bits = batch.visible.tolist()
    bounds = zip(batch.query_starts, batch.query_starts[1:], strict=False)
    return frozenset(i for i, (start, end) in enumerate(bounds) if any(bits[start:end]))


def _heads_first(tokens: torch.Tensor) -> torch.Tensor:
    """[T, heads, head_dim] -> [1, heads, T, head_dim]."""
    return tokens.transpose(0, 1)[None]


def create(config: ModelConfig, ops: Ops, coarse: bool) -> AttentionBackend:
    """Makes the SDPA backend."""
    return SdpaAttention(config)
